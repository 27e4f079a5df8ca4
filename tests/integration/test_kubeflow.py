"""What `make kubeflow` writes, in Kubeflow's local runner: every stage in its container, up to what is published."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".kubeflow-venv/bin/python"
# The images' own entry point would go before the command, other than in a cluster; `env` runs what follows.
RUN = """
import sys
from kfp import components, local
path, root, network = sys.argv[1:]
local.init(local.DockerRunner(network=network, entrypoint="env"), pipeline_root=root)
components.load_component_from_file(path)()
"""


@pytest.fixture
def pipeline(images: None, deployment: Deployment, tmp_path: Path) -> Path:
    """The compiled pipeline of the deployment, with a remote of its own."""
    deployment.put_data()
    if not PYTHON.exists():
        subprocess.run(["make", ".kubeflow-venv/.done"], cwd=ROOT, check=True)
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = {name: deployment.settings[name] for name in names}  # a cluster has them from secrets
    environment |= {
        "AWS_ENDPOINT_URL": deployment.endpoint,
        "MLFLOW_TRACKING_URI": "http://mlflow:5000",
        "SLIMTOWER_REPO": deployment.repo,
        "SLIMTOWER_REMOTE": f"s3://{deployment.bucket}/kubeflow",
        "SLIMTOWER_RUN": "local",  # a cluster has it from the pod
    }
    settings = {
        "recipe": "recipes/tiny.yaml",
        "variables": {"DATA": f"s3://{deployment.bucket}/data"},
        "environment": environment,
        "retries": 0,
    }
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(settings))
    subprocess.run(
        [PYTHON, "-m", "slimtower_dags.kubeflow", "--output", tmp_path / "kubeflow.yaml"],
        cwd=deployment.project,
        env=os.environ | {"SLIMTOWER_DEPLOYMENT": str(path), "PYTHONPATH": "dags"},
        check=True,
    )
    return tmp_path / "kubeflow.yaml"


def published(deployment: Deployment) -> dict[str, Any]:
    """What the newest finished run was fixed to."""
    store: Any = boto3.client("s3", endpoint_url=deployment.endpoint)
    body = store.get_object(Bucket=deployment.bucket, Key="kubeflow/locks/latest/begin.json")["Body"]
    return dict(json.loads(body.read()))


def test_the_graph_publishes_a_release(pipeline: Path, deployment: Deployment, tmp_path: Path) -> None:
    words = [PYTHON, "-c", RUN, pipeline, tmp_path / "root", deployment.name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    # podman may forget how a container ended that removes itself: what counts is what they did
    assert "task publish: done" in output, output[-6000:]
    assert output.count(": done;") == len(published(deployment)["stages"]) + 2, "every stage once, begin and publish"
