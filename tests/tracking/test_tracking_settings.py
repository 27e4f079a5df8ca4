"""Wrong settings of tracking: one line at once, whichever library would have complained."""

import time
from pathlib import Path

import pytest
from proxy import Proxy

from slimtower.common.errors import UserError
from slimtower.registry.client import client
from steps.tracking.runs import experiment_id

pytestmark = [pytest.mark.medium, pytest.mark.faults("MLflow away")]


def contacted(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the refusal of a store says."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError) as caught:
        experiment_id(client())
    assert "MLFLOW_TRACKING_URI" in str(caught.value)
    return str(caught.value)


def test_a_store_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no such kind, or a server that is no MLflow."""
    for uri in ("gopher://host", "http://a:b:c@host:port", "mysql+nodriver://host/db", "file:/tmp/runs"):
        assert "cannot be used for tracking" in contacted(uri, monkeypatch)
    server = Proxy(0)
    for status in (200, 404):
        server.page = status, "<html>welcome</html>"
        assert "cannot be used for tracking" in contacted(server.url, monkeypatch)
    server.close()


def test_a_file_that_is_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    (tmp_path / "garbage.db").write_bytes(b"garbage" * 100)
    assert "no database of SQLite" in contacted(f"sqlite:///{tmp_path}/garbage.db", monkeypatch)
    assert "is no folder" in contacted(f"sqlite:///{tmp_path}/nowhere/mlflow.db", monkeypatch)
    assert "is not a file" in contacted(f"sqlite:///{tmp_path}", monkeypatch)
    assert time.monotonic() - started < 10, "told at once, not after MLflow's own tries"
