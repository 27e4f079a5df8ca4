"""What Kubeflow Pipelines runs is the graph of Airflow and DVC, with the same images, commands and resources."""

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from slimtower_dags import variables
from slimtower_dags.graph import read_graph

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = PROJECT / ".kubeflow-venv/bin/python"
TODAY = datetime.now(UTC)
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PYTHON.exists(), reason="needs `make kubeflow`")]


def compiled(folder: Path, deployment: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The pipeline of a deployment's text, and what it says of Kubernetes."""
    path = folder / "deployment.yaml"
    path.write_text(deployment or "{}")
    command = [PYTHON, "-m", "slimtower_dags.kubeflow", "--output", folder / "kubeflow.yaml"]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=os.environ | {"SLIMTOWER_DEPLOYMENT": str(path), "PYTHONPATH": "dags"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    pipeline, platform = yaml.safe_load_all((folder / "kubeflow.yaml").read_text())
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.mark.parametrize("recipe", ["", "recipes/cross_encoder_teacher.yaml"])
def test_the_graph_is_that_of_dvc(recipe: str, tmp_path: Path) -> None:
    pipeline, _ = compiled(tmp_path, f"recipe: '{recipe}'")
    graph = read_graph(PROJECT, recipe)
    tasks = pipeline["root"]["dag"]["tasks"]
    ids = {stage.task_id.replace("_", "-"): address for address, stage in graph.stages.items()}
    assert tasks.keys() == ids.keys() | {"begin", "publish"}
    edges = {name: set(task.get("dependentTasks", [])) for name, task in tasks.items()}
    expected = {
        name: {before.replace("@", "-").replace("_", "-") for before in graph.direct[address]} or {"begin"}
        for name, address in ids.items()
    }
    leaves = {leaf.replace("@", "-").replace("_", "-") for leaf in graph.leaves}
    assert edges == expected | {"begin": set(), "publish": leaves}
    assert not any(task["cachingOptions"] for task in tasks.values())  # DVC decides what runs again


def test_a_task_has_the_image_command_resources_and_secrets_of_its_deployment(tmp_path: Path) -> None:
    pipeline, platform = compiled(
        tmp_path,
        "images: {prefix: r.example.com/, tag: '1', gpu_tag: 1-gpu}\nretries: 2\nretry_delay_s: 10\n"
        "environment: {SLIMTOWER_REPO: git://x}\n"
        "kubernetes: {secrets: [s3], cache_claim: cache, gpu_node_selector: {accelerator: nvidia},"
        " gpu_tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]}\n"
        "stages: {teach: {gpus: 2, processes: 2, memory_gib: 16, timeout_h: 2}}\n",
    )
    executors, tasks = pipeline["deploymentSpec"]["executors"], pipeline["root"]["dag"]["tasks"]
    mine, teach = (executors[f"exec-{name}"]["container"] for name in ("mine-click", "teach-dense"))
    assert mine["image"] == "r.example.com/slimtower-mine:1" and teach["image"] == "r.example.com/slimtower-teach:1-gpu"
    assert mine["args"][0] == "mine@click" and teach["args"][0] == "teach@dense"
    plain = {item["name"]: item["value"] for item in teach["env"]}
    assert {
        "SLIMTOWER_REPO": "git://x",
        "SLIMTOWER_REQUIRE_CUDA": "1",
        "SLIMTOWER_PROCESSES": "2",
    }.items() <= plain.items()
    assert teach["resources"]["accelerator"] == {
        "count": "2", "resourceCount": "2", "type": "nvidia.com/gpu", "resourceType": "nvidia.com/gpu",
    }  # fmt: skip
    assert "accelerator" not in mine["resources"] and teach["resources"]["resourceMemoryLimit"] == "16384Mi"
    policy = tasks["teach-dense"]["retryPolicy"]
    assert policy["maxRetryCount"] == 2 and policy["backoffDuration"] == "10s"
    assert int(policy["backoffMaxDuration"].rstrip("s")) >= 3 * 2 * 3600, "it bounds all tries together"
    gpu, cpu = platform["exec-teach-dense"], platform["exec-mine-click"]
    (secret,) = gpu["secretAsEnv"]
    keys = {key["secretKey"]: key["envVar"] for key in secret["keyToEnv"]}
    assert not keys.keys() & plain.keys(), "a variable with two sources is refused by Kubernetes"
    (run,) = gpu["fieldPathAsEnv"]
    assert run == {"name": "SLIMTOWER_RUN", "fieldPath": "metadata.labels['pipeline/runid']"}
    words = [word for name in executors for word in executors[name]["container"]["args"]]
    assert not [word for word in words if "pipeline_job" in word], "the driver fills inputs alone"
    assert secret["secretName"] == "s3" and keys["AWS_SECRET_ACCESS_KEY"] == "AWS_SECRET_ACCESS_KEY"
    assert gpu["pvcMount"][0]["constant"] == "cache" and gpu["activeDeadlineSeconds"] == "7200"
    assert gpu["nodeSelector"]["labels"] == {"accelerator": "nvidia"} and gpu["tolerations"][0]["key"] == "gpu"
    assert "nodeSelector" not in cpu and "tolerations" not in cpu


@pytest.mark.parametrize(
    ("days", "given", "window"),
    [
        (10, ["", "2026-03-01"], ["2026-02-19", "2026-03-01"]),
        (10, ["", "2026-03-01T00:00:00"], ["2026-02-19", "2026-03-01T00:00:00"]),
        (10, ["2026-01-01", "2026-02-01"], ["2026-01-01", "2026-02-01"]),
        (10, ["", ""], [f"{TODAY - timedelta(days=10):%Y-%m-%d}", f"{TODAY:%Y-%m-%d}"]),
        (0, ["", "2026-03-01"], ["", "2026-03-01"]),
        ("null", ["", ""], ["", ""]),
    ],
)
def test_the_window_is_that_of_a_run_of_airflow(
    days: int | str, given: list[str], window: list[str], tmp_path: Path
) -> None:
    pipeline, _ = compiled(tmp_path, f"window_days: {days}")
    assert begin(pipeline, tmp_path, given) == (0, ["begin", "s3://b/data", *window, "v1"])
    if days != "null":
        run = SimpleNamespace(run_type="manual", data_interval_end=None, run_after=TODAY)
        params = dict(zip(("since", "until"), given, strict=True))
        assert [variables.since(params, run, int(days)), variables.until(params, run, int(days))] == window


def test_a_window_that_cannot_be_computed_is_no_run_over_everything(tmp_path: Path) -> None:
    pipeline, _ = compiled(tmp_path, "window_days: 10")
    assert begin(pipeline, tmp_path, ["", "last week"]) == (3, [])


def begin(pipeline: dict[str, Any], folder: Path, given: list[str]) -> tuple[int, list[str]]:
    """How the first task ends, and what it is told: a program in place of Python says so, and that nothing is to do."""
    container = pipeline["deploymentSpec"]["executors"]["exec-begin"]["container"]
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$3" "$DATA" "$SINCE" "$UNTIL" "$SLIMTOWER_REF"\nexit 99\n')
    python.chmod(0o755)
    environment = {item["name"]: item.get("value", "") for item in container["env"]}
    environment |= {"PATH": f"{folder}:{os.environ['PATH']}"}
    words = [*container["command"], "begin", "", "s3://b/data", *given, "v1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_a_file_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "slimtower_dags.kubeflow", "--output", tmp_path / "nowhere/kubeflow.yaml"]
    environment = os.environ | {"PYTHONPATH": "dags"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"kubeflow: {tmp_path / 'nowhere/kubeflow.yaml'}: cannot be written")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("key", "deployment"),
    [
        (r"variables\.TEST_FROM", "recipe: recipes/click_log.yaml\nvariables: {TEST_FROM: '{{ ds }}'}"),
        (r"kubernetes\.secrets: name one", "kubernetes: {secrets: [s3, mlflow]}"),
        (r"stages\.teach\.environment\.X", "stages: {teach: {environment: {X: '{{ ds }}'}}}"),
    ],
)
def test_what_kubeflow_cannot_do_is_refused(key: str, deployment: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"^kubeflow: deployment: {key}"):
        compiled(tmp_path, deployment)
