"""containers/prepare.py against a server that is busy at first."""

import base64
import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, quote_plus

import pytest

FILE = Path(__file__).parents[2] / "containers" / "prepare.py"
EXISTS = {"error_code": "RESOURCE_ALREADY_EXISTS"}
PASSWORD = 'it"s a/päss+wörd'


class Accounts(ThreadingHTTPServer):
    """Answers POST and PATCH with what `answers` holds, first to last: (status, body), or None to hang up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str]] | None] = []
        self.asked: list[str] = []
        self.users: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Accounts

    def do_GET(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.users.append(sent["username"])
        self.server.asked.append(f"{self.command} {self.path.rpartition('/')[2]}")
        answer = self.server.answers.pop(0)
        if answer:
            self._send(*answer)

    do_PATCH = do_POST

    def _send(self, status: int, body: dict[str, str]) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    server = Accounts()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_AUTH_ADMIN_PASSWORD"):
        monkeypatch.setenv(name, "x")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    return module


def test_accounts_are_made_though_the_server_is_busy_at_first(
    prepare: ModuleType, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the service where it has a password."""
    accounts.answers = [None, (503, {}), (400, EXISTS), (500, {}), (200, {})]
    prepare.account()
    assert accounts.asked == ["POST create"] * 3 + ["PATCH update-password"] * 2
    monkeypatch.setenv("SERVE_MLFLOW_USERNAME", "serve")
    for password, users in (("", ["x"]), ("its own password", ["x", "serve"])):
        monkeypatch.setenv("SERVE_MLFLOW_PASSWORD", password)
        accounts.answers, accounts.users = [(200, {}), (200, {})], []
        prepare.account()
        assert accounts.users == users


@pytest.mark.parametrize(
    "spelled",
    [
        PASSWORD,
        json.dumps(PASSWORD),
        repr(PASSWORD),
        quote(PASSWORD, safe=""),
        quote_plus(PASSWORD),
        base64.b64encode(f"admin:{PASSWORD}".encode()).decode(),
        "x" * 276 + PASSWORD,  # the cut must leave no half of it
    ],
)
def test_what_the_server_echoes_holds_no_password(
    spelled: str, prepare: ModuleType, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_AUTH_ADMIN_PASSWORD"):
        monkeypatch.setenv(name, PASSWORD)
    accounts.answers = [(400, {"message": f"bad {spelled}"})]
    with pytest.raises(SystemExit) as ended:
        prepare.account()
    said = str(ended.value)
    assert "***" in said and "refused to make x" in said
    assert not any(part in said for part in ("it", "wörd", "w\\u00f6rd", "w%C3%B6rd", "YWRtaW46"))


def test_waiting_in_vain_tells_no_password(prepare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setattr(prepare, "WAIT_S", -1)

    def refused() -> None:
        raise OSError(f"no connection with password={PASSWORD}")

    with pytest.raises(SystemExit, match=r"^prepare: not reached within -1 s: no connection with password=\*\*\*$"):
        prepare.patiently(refused, OSError)


def test_a_refusal_is_not_tried_again(prepare: ModuleType, accounts: Accounts) -> None:
    for status in (401, 403):
        for answers, what in (
            ([(status, {})], "make x"),
            ([(400, EXISTS), (status, {})], "change the password of x"),
        ):
            accounts.answers = [*answers]
            with pytest.raises(SystemExit, match=f"refused to {what}: .*; check MLFLOW_AUTH_ADMIN_PASSWORD"):
                prepare.account()
