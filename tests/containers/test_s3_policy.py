"""The S3 policy of docs/operations.md allows what the code asks of a small server that records."""

import fnmatch
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from dvc.repo import Repo
from faulty_s3 import FaultyS3
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from pipeline.task.run_store import open_store
from pipeline.task.workspace import _configure
from slimtower.service.log_store import S3LogStore
from steps.ingest.locations import listing, locate
from steps.ingest.times import Window
from steps.promote.lock import S3LockStore

pytestmark = pytest.mark.faults("security")

ROOT = Path(__file__).parents[2]
REMOTE, ARTIFACTS, LOG = "s3://slimtower/pipeline", "s3://slimtower/mlflow", "s3://logs/searches"
ACTIONS = {  # of the calls of boto3's client; a new call needs a line here, and its action in the policy
    "get_object": "GetObject", "head_object": "GetObject", "put_object": "PutObject", "delete_object": "DeleteObject",
    "list_objects_v2": "ListBucket", "head_bucket": "ListBucket", "create_bucket": None,
}  # fmt: skip
POLICY = json.loads(re.search(r"```json\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)[1])
TASKS = {"Look", "Project", "Locks", "Logs"}
SERVICE = {"Look", "Logs", "SearchLog"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    s3 = FaultyS3()
    settings = {"AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    for name, value in (settings | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    yield s3
    s3.shutdown()
    s3.server_close()


def needed(request: str) -> set[tuple[str, str]]:
    """(action, resource) of `METHOD /bucket/key?query`; an absent object is told from a refused one by ListBucket."""
    method, _, target = request.partition(" ")
    parts = urlsplit(target)
    bucket, _, key = parts.path.lstrip("/").partition("/")
    list_bucket = ("s3:ListBucket", f"arn:aws:s3:::{bucket}")
    if not key:
        assert method in ("GET", "HEAD"), request
        return {list_bucket}
    assert "uploads" not in parse_qs(parts.query, keep_blank_values=True), "files of the test are small"
    action = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}[method]
    return {(f"s3:{action}", f"arn:aws:s3:::{bucket}/{key}")} | ({list_bucket} if action == "GetObject" else set())


def allowed(action: str, resource: str, statements: set[str]) -> bool:
    return any(
        action in statement["Action"]
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in POLICY["Statement"]
        if statement["Sid"] in statements and statement["Effect"] == "Allow" and "Condition" not in statement
    )


def refused(server: FaultyS3, statements: set[str]) -> set[tuple[str, str]]:
    """What was asked for and the statements do not allow."""
    required = set().union(*map(needed, server.asked))
    assert required
    return {permission for permission in required if not allowed(*permission, statements)}


def test_every_call_of_the_code_is_known_and_its_action_allowed() -> None:
    called = set()
    folders = ("slimtower", "steps", "pipeline", "containers", "dags")
    for path in (path for name in folders for path in (ROOT / name).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"boto3|s3_client", text):
            called |= set(re.findall(r"(?:client|api)\.(\w+_(?:objects?|objects_v2|bucket|part|upload))\b", text))
            called |= set(re.findall(r'get_paginator\("(\w+)"\)', text))
            called |= set(re.findall(r"\.((?:up|down)load_file(?:obj)?|copy_object|head_\w+)\(", text))
    assert called == set(ACTIONS)
    actions = {action for statement in POLICY["Statement"] for action in statement["Action"]}
    assert {f"s3:{action}" for action in ACTIONS.values() if action} <= actions


@pytest.mark.medium
def test_the_stores_of_tasks(server: FaultyS3) -> None:
    server.objects |= {f"logs/searches/queries/dt=2026-01-0{day}/q.jsonl": b"{}" for day in (1, 2)}
    store = open_store(REMOTE)
    assert store.read("locks/latest/begin.json") is None and not store.holds("runs/a/begin.json")
    store.write("runs/a/begin.json", b"{}")
    assert store.names("runs/a") == ["begin.json"]
    locks = S3LockStore(f"{ARTIFACTS}/locks")
    assert locks.put_new("name/1", "{}") and not locks.put_new("name/1", "{}")
    server.objects["slimtower/mlflow/locks/name/0123abcd/artifacts/99999999"] = b"{}"  # of a run, not of a promotion
    assert list(locks.entries("name")) == ["name/1"]
    locks.delete("name/1")
    for location in (f"{LOG}/queries", f"{LOG}/queries/dt=2026-01-01/q.jsonl", LOG):
        assert locate(location, key="x")
        assert listing(location, key="x", window=Window.of("2026-01-02", "")) or location.endswith("q.jsonl")
    assert refused(server, TASKS) == set()


def test_the_bucket_of_a_deployment(server: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "containers" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("ARTIFACT_ROOT", ARTIFACTS)
    monkeypatch.setenv("SLIMTOWER_REMOTE", REMOTE)
    module.buckets()
    assert server.asked == ["HEAD /slimtower"]
    assert refused(server, TASKS) == set()


@pytest.mark.medium
def test_the_artefacts_of_mlflow(server: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", server.url)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    repository = get_artifact_repository(f"{ARTIFACTS}/1/run/artifacts")
    repository.log_artifact(str(tmp_path / "model" / "weights"))
    repository.log_artifacts(str(tmp_path / "model"), "model")
    assert {item.path for item in repository.list_artifacts()} == {"weights", "model"}
    assert (Path(repository.download_artifacts("model", str(tmp_path))) / "weights").read_text() == "w"
    assert refused(server, TASKS) == set()


@pytest.mark.medium
def test_what_dvc_pushes_and_pulls(server: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True).close()
    _configure(tmp_path, REMOTE)
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / str(number)).write_text(str(number))
    with Repo() as repo:
        repo.add("data")
        assert repo.push(run_cache=True)
        for path in [*(tmp_path / "data").iterdir()]:
            path.unlink()
        repo.pull()
        assert not repo.status(cloud=True)
    assert (tmp_path / "data/2").read_text() == "2"
    assert any(name.startswith("slimtower/pipeline/dvc/") for name in server.objects)
    assert refused(server, TASKS) == set()


@pytest.mark.medium
def test_the_search_log_of_the_service(server: FaultyS3, tmp_path: Path) -> None:
    store = S3LogStore(LOG)
    server.objects[f"{LOG.removeprefix('s3://')}/corpus.parquet"] = b"rows"
    assert store.fetch("corpus.parquet", tmp_path).read_bytes() == b"rows"
    del server.objects[f"{LOG.removeprefix('s3://')}/corpus.parquet"]
    store.keep("site/corpus.jsonl", lambda: ["{}\n"])
    assert server.objects.pop(f"{LOG.removeprefix('s3://')}/site/corpus.jsonl") == b"{}\n"
    store.write("site/queries/dt=2026-01-01/slimtower-1.jsonl", "{}")
    for name in list(store.names()):
        store.delete(name)
    assert refused(server, SERVICE) == set()
    assert refused(server, TASKS) == {
        (f"s3:{action}", f"arn:aws:s3:::{LOG.removeprefix('s3://')}/site/{name}")
        for action, name in (
            ("PutObject", "corpus.jsonl"),
            ("PutObject", "queries/dt=2026-01-01/slimtower-1.jsonl"),
            ("DeleteObject", "queries/dt=2026-01-01/slimtower-1.jsonl"),
        )
    }
