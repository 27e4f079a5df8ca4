"""Wrong settings of tracking: one line at once, whichever library would have complained."""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimtower.common.errors import UserError
from slimtower.registry.client import client
from steps.tracking.runs import experiment_id

pytestmark = [pytest.mark.medium, pytest.mark.faults("MLflow away")]


@pytest.fixture
def page() -> Iterator[str]:
    """A web server that answers every question with a page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if "missing" in self.path else 200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def contacted(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the refusal of a store says."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError) as caught:
        experiment_id(client())
    assert "MLFLOW_TRACKING_URI" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "uri", ["gopher://host", "http://a:b:c@host:port", "mysql+nodriver://host/db", "file:/tmp/runs"]
)
def test_a_store_that_cannot_be(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be used for tracking" in contacted(uri, monkeypatch)


def test_a_server_that_is_no_mlflow(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "/missing"):
        assert "cannot be used for tracking" in contacted(f"{page}{path}", monkeypatch)


def test_a_file_that_is_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    (tmp_path / "garbage.db").write_bytes(b"garbage" * 100)
    assert "no database of SQLite" in contacted(f"sqlite:///{tmp_path}/garbage.db", monkeypatch)
    assert "is no folder" in contacted(f"sqlite:///{tmp_path}/nowhere/mlflow.db", monkeypatch)
    assert "is not a file" in contacted(f"sqlite:///{tmp_path}", monkeypatch)
    assert time.monotonic() - begun < 10, "told at once, not after MLflow's own tries"
