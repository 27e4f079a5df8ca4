"""Promotion against a real MLflow server with basic auth whose artefacts and locks lie on a real S3 server."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import mlflow
import pytest
import requests
from promote_project import PARAMS, RELEASES, copy_project, params, promote, release_files, write_evaluation
from races import winners
from serve_process import free_port, status, until

from slimtower.common.errors import TransientError, UserError
from steps.promote import run as commands
from steps.promote.lock import Lock, S3LockStore, lock_store
from steps.promote.registry import Registry

NEEDED = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
MISSING = [name for name in NEEDED if not os.environ.get(name)]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"needs an S3 server: set {', '.join(MISSING)}"),
]
PASSWORDS = {"admin": "admin-password-1", "deployer": "deployer-password-1", "reader": "reader-password-1"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    client: Any = boto3.client("s3")
    name = f"promote-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    yield name
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=name, Key=item["Key"])
    client.delete_bucket(Bucket=name)


@pytest.fixture(scope="module")
def server(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of `mlflow server` with users admin, deployer and reader, as docs/tracking.md starts it."""
    pytest.importorskip("flask_wtf", reason="needs mlflow[auth]")
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = admin\nauth_cache_ttl_seconds = 60\n"
        f"database_uri = sqlite:///{folder}/auth.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    environment = os.environ | {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORDS["admin"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": uuid.uuid4().hex,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_TRACKING_URI": "",
    }
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command += ["--default-artifact-root", f"s3://{bucket}/mlflow", "--no-serve-artifacts"]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            until(lambda: status(f"{url}/health") == 200, process, 120)
            for user in ("deployer", "reader"):
                credentials = {"username": user, "password": PASSWORDS[user]}
                account, login = f"{url}/api/2.0/mlflow/users/create", ("admin", PASSWORDS["admin"])
                requests.post(account, json=credentials, auth=login, timeout=30).raise_for_status()
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=30)


def log_in(patch: pytest.MonkeyPatch, user: str, password: str | None = None) -> None:
    patch.setenv("MLFLOW_TRACKING_USERNAME", user)
    patch.setenv("MLFLOW_TRACKING_PASSWORD", password or PASSWORDS[user])


@pytest.fixture
def project(released: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_project(released, tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setitem(PARAMS, "name", f"retriever-{uuid.uuid4().hex[:8]}")
    for name in ("SLIMTOWER_PARENT_RUN", "SLIMTOWER_LOCK", "SLIMTOWER_OPERATOR", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    log_in(monkeypatch, "deployer")
    write_evaluation({"static": 0.5, "2l": 0.6})
    return folder


def test_promote_twice_die_in_between_and_roll_back(
    project: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    promote()
    real = commands.promote

    def dies(*arguments: Any, **named: Any) -> Any:
        def after(step: str) -> None:
            if step == "champion":
                raise KeyboardInterrupt

        return real(*arguments, after=after, **named)

    with monkeypatch.context() as patch:
        patch.setattr(commands, "promote", dies)
        with pytest.raises(KeyboardInterrupt):
            promote(params=params(student="2l"))
    capsys.readouterr()
    promote(params=params(student="2l"))
    printed = capsys.readouterr().out
    assert "promote: finished the record of version 2, promoted by deployer at" in printed
    assert "/2 is the champion already; nothing to do" in printed

    uri = f"models:/{PARAMS['name']}@champion"
    served = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(project / "b"))
    assert release_files(Path(served)) == release_files(RELEASES / "2l")
    commands.run_rollback(params())
    served = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(project / "a"))
    assert release_files(Path(served)) == release_files(RELEASES / "static")

    registry = Registry(PARAMS["name"])
    assert registry.model_tags()["lock"] == f"s3://{bucket}/mlflow/locks"
    assert registry.version("1").source.startswith(f"s3://{bucket}/mlflow/")
    assert lock_store(registry).entries(PARAMS["name"]) == {}
    commands.run_history(params())
    lines = [line for line in capsys.readouterr().out.splitlines() if "deployer" in line]
    actions = [line.split("Z  ")[1].split("  ")[0] for line in lines]
    assert actions == ["promoted", "promoted", "rolled back to"]


def test_one_of_many_writers_holds_the_lock_on_s3_and_a_stale_one_is_overtaken(bucket: str) -> None:
    store, *writers = (S3LockStore(f"s3://{bucket}/race") for _ in range(7))
    wins = winners(6, lambda number: writers[number].put_new("a/00000001", f"body of {number}"))
    assert len(wins) == 1
    assert store.entries("a")["a/00000001"].body == f"body of {wins[0]}"

    lock_record = json.dumps({"id": "x", "host": "gone", "pid": 1, "in": "elsewhere"})
    assert store.put_new("b/00000001", lock_record) and store.put_new("b/note.txt", "no lock")
    with pytest.raises(TransientError, match="held by process 1 on gone"), Lock(store, "b", 0.0, 60.0).hold():
        pass
    time.sleep(4)  # ages are whole seconds, and some stores round up
    with Lock(store, "b", 0.0, 1.0).hold():
        assert list(store.entries("b")) == ["b/00000002"]  # the note, which nobody took, is none
    assert store.entries("b") == {}


def test_whoever_may_only_read_cannot_promote(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promote()
    log_in(monkeypatch, "reader")
    commands.run_history(params())
    with pytest.raises(UserError, match=r"the server refused: .* check MLFLOW_TRACKING_USERNAME") as caught:
        promote(params=params(student="2l"))
    assert not isinstance(caught.value, TransientError)
    log_in(monkeypatch, "deployer", "wrong")
    with pytest.raises(UserError, match="the server refused"):
        promote()
    log_in(monkeypatch, "deployer")
    assert Registry(PARAMS["name"]).aliases() == {"champion": "1"}


def test_a_wrong_secret_of_the_store_is_not_worth_another_try(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promote()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        patch.setattr(boto3, "DEFAULT_SESSION", None)  # remembers the right one
        with pytest.raises(UserError, match="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY") as caught:
            promote(params=params(student="2l"))
        assert not isinstance(caught.value, TransientError)
    promote(params=params(student="2l"))
    assert Registry(PARAMS["name"]).aliases() == {"champion": "2", "previous": "1"}
