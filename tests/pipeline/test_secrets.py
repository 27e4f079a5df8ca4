"""Planted secrets, real commands: nothing that a run prints, tracks or writes holds one, if it fails or not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from whole_run import params_of, write_beir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.faults("secrets")]

ROOT = Path(__file__).parents[2]
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED01",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret/41c2d9/key",
    "AWS_SESSION_TOKEN": "planted-session-token-9f3e",
    "MLFLOW_TRACKING_PASSWORD": "planted mlflow's pass@word 77",
    "SLIMTOWER_ENDPOINT_API_KEY": "sk-planted-endpoint-key-5150",
    "SLIMTOWER_LOG_SALT": "planted-salt-0b1c2d",
}
TOKEN = SECRETS["AWS_SESSION_TOKEN"]
IN_URL = "planted:p/w@d-88"
NOWHERE = "127.0.0.1:9"  # nobody listens there


@pytest.fixture(scope="module")
def project(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with params and data of its own, in which steps run as commands."""
    root = tmp_path_factory.mktemp("secrets")
    judged = {"test": slice(0, 12), "dev": slice(12, 20), "train": slice(20, 50)}
    data = write_beir(root / "beir", judged=judged, part=slice(0, 60))
    params = params_of("beir.yaml", tiny_tower, DATA=str(data))
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump()), encoding="utf-8")
    return root


def run(project: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit code of a step's command in the project, and all that it printed."""
    quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1"}
    named = {"SLIMTOWER_EXIT_FILE": str(project / "exit.json"), "PYTHONPATH": str(ROOT)}
    given = os.environ | SECRETS | quick | named | environment
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=project, env=given, capture_output=True, text=True, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


def leaks(project: Path, said: str) -> Iterator[str]:
    """Where a secret stands, as it is or percent-encoded."""
    spelled = [
        form for secret in [*SECRETS.values(), IN_URL.partition(":")[2]] for form in (secret, quote(secret, safe=""))
    ]
    for form in spelled:
        if form in said:
            yield f"said: {form}"
        for path in project.rglob("*"):
            if path.is_file() and path.name != "params.yaml" and form.encode() in path.read_bytes():
                yield f"{path.relative_to(project)}: {form}"


def test_a_run_that_succeeds_keeps_them(project: Path) -> None:
    for words in (["--list"], []):
        code, said = run(project, "steps.ingest", *words)
        assert code == 0, said
        assert list(leaks(project, said)) == []
    assert (project / "mlflow.db").is_file()


@pytest.mark.parametrize(
    ("change", "environment", "code"),
    [
        ({"path": "s3://bucket/x"}, {"AWS_ENDPOINT_URL": f"http://{IN_URL}@{NOWHERE}"}, 3),
        ({"path": f"https://{IN_URL}@host/data"}, {}, 3),
        ({"path": "s3://bucket/x"}, {"AWS_SESSION_TOKEN": f"{TOKEN}\n", "AWS_ENDPOINT_URL": f"http://{NOWHERE}"}, 3),
        ({}, {"MLFLOW_TRACKING_URI": f"http://{IN_URL}@{NOWHERE}"}, 3),
        ({"name": SECRETS["SLIMTOWER_ENDPOINT_API_KEY"] + " "}, {}, 3),
    ],
)  # fmt: skip
def test_a_run_that_fails_keeps_them(
    project: Path, change: dict[str, str], environment: dict[str, str], code: int, tmp_path: Path
) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    params["ingest"]["sources"][0] |= change
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    database = {"MLFLOW_TRACKING_URI": f"sqlite:///{project / 'mlflow.db'}"}
    ended, said = run(tmp_path, "steps.ingest", **database | environment)
    assert list(leaks(tmp_path, said)) == []
    assert ended == code, said
    assert "Traceback" not in said


def test_a_defect_of_ours_keeps_them(project: Path, tmp_path: Path) -> None:
    """Also a traceback, with the secret in the error itself."""
    program = tmp_path / "broken.py"
    program.write_text(
        "import os\nfrom steps.core.errors import guarded\nfrom steps.core.exit_file import recorded\n"
        "def command():\n    with recorded():\n"
        "        raise RuntimeError(f'no answer for {os.environ[\"SLIMTOWER_ENDPOINT_API_KEY\"]}', dict(os.environ))\n"
        "guarded(command)\n",
        encoding="utf-8",
    )
    code, said = run(tmp_path, "broken")
    assert code == 1 and "Traceback" in said
    assert list(leaks(tmp_path, said)) == []
