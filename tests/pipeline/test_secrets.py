"""Planted secrets, real commands: nothing that a run prints, tracks or writes holds one, if it fails or not."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from embedding_server import KEY, serving, tower_reader
from serve_process import serving as served
from serve_process import until
from whole_run import params_of, write_beir

from steps.encoders.towers import load_tower

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
    variables = os.environ | SECRETS | quick | named | environment
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=project, env=variables, capture_output=True, text=True, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


def leaks(project: Path, output: str) -> Iterator[str]:
    """Where a secret stands, as it is or percent-encoded."""
    spelled = [
        form for secret in [*SECRETS.values(), IN_URL.partition(":")[2]] for form in (secret, quote(secret, safe=""))
    ]
    for form in spelled:
        if form in output:
            yield f"said: {form}"
        for path in project.rglob("*"):
            if path.is_file() and path.name != "params.yaml" and form.encode() in path.read_bytes():
                yield f"{path.relative_to(project)}: {form}"


def test_a_run_that_succeeds_keeps_them(project: Path) -> None:
    for words in (["--list"], []):
        code, output = run(project, "steps.ingest", *words)
        assert code == 0, output
        assert list(leaks(project, output)) == []
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
    ended, output = run(tmp_path, "steps.ingest", **database | environment)
    assert list(leaks(tmp_path, output)) == []
    assert ended == code, output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("key", "fault", "code"),
    [
        (KEY, "", 0),
        pytest.param(f"{KEY}-old", "", 3, marks=pytest.mark.nightly),
        pytest.param(KEY, "error", 75, marks=pytest.mark.nightly),
    ],
)
def test_a_rented_teacher_keeps_its_key(
    project: Path, tiny_tower: Path, tmp_path: Path, key: str, fault: str, code: int
) -> None:
    """In a variable whose name says nothing; a server that refuses repeats the key."""
    raw = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    with serving(tower_reader(load_tower(tiny_tower))) as server:
        server.faults = [fault] * 8
        connection = {"base_url": server.url, "key_variable": "OUR_PROVIDER", "max_tokens_total": 0, "tries": 1}
        described = {"kind": "endpoint", "model": "tiny", "query": {}, "document": {}, "connection": connection}
        raw["teach"] |= {"teachers": ["rented"], "index": "rented", "teacher": {"rented": described}}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
        (tmp_path / "data").symlink_to(project / "data")
        ended, output = run(tmp_path, "steps.teach", "--teacher", "rented", OUR_PROVIDER=key)
    assert ended == code and "Traceback" not in output, output
    assert [*leaks(tmp_path, output)] == [] and key not in output
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert (tmp_path / "models/teach/rented/tower").is_dir() == (code == 0)


@pytest.mark.parametrize("to", ["postgresql://{}@{}/db", "https://{}@{}", "milvus+http://{}@{}"])
def test_a_deployment_that_fails_keeps_the_password_of_its_engine(tmp_path: Path, to: str) -> None:
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    login = {name: f"planted-{name}-66" for name in ("PGPASSWORD", "QDRANT_API_KEY", "MILVUS_TOKEN")}
    code, output = run(
        tmp_path, "slimtower", "deploy", "--rollback", "--to", to.format(quote(IN_URL, safe=":"), NOWHERE), **login
    )
    assert code == 75 and "Traceback" not in output, output
    assert [*leaks(tmp_path, output)] == [] and not [secret for secret in login.values() if secret in output]


def test_the_service_keeps_them(released: Path, tmp_path: Path) -> None:
    """Where it answers, refuses, fails and logs; and where its registry is out of reach."""
    for name in ("models/release", "data/ingest"):
        shutil.copytree(released / name, tmp_path / name)
    registry = {"MLFLOW_TRACKING_URI": f"http://{quote(IN_URL, safe=':')}@{NOWHERE}"}
    heard = []
    for options, ready in (
        (["--log", "log", "--log-flush", "0.2", "--workers", "2"], True),
        (["--model", "m@champion"], False),
    ):
        with served(tmp_path, *options, ready=ready, **SECRETS, **registry) as (url, _):
            for path in ("/", "/health", "/metrics", "/systems", "/search?q=sum", "/search?q=sum&system=x", "/nowhere"):
                heard.append(answer(f"{url}{path}", {"X-Search-Consent": "yes"}))
            for body in (b"{", b'{"query": 7}', b'{"model": "x", "input": "sum"}'):
                heard.append(answer(f"{url}/v1/embeddings", {"Content-Type": "application/json"}, body))
            if ready:
                until(lambda: list(tmp_path.glob("log/*/queries/*/*.jsonl")))
        heard.append((tmp_path / "serve.log").read_text())
    assert "not reached" in "".join(heard) and [*leaks(tmp_path, "".join(heard))] == []


def answer(url: str, headers: dict[str, str], body: bytes | None = None) -> str:
    """What the service says, whatever its status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
            return f"{response.headers}{response.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"
