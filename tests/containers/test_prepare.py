"""containers/prepare.py against a server that is busy at first."""

import base64
import importlib.util
import io
import json
import urllib.request
from email.message import Message
from http.client import RemoteDisconnected
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError
from urllib.parse import quote, quote_plus
from urllib.request import Request

import pytest

FILE = Path(__file__).parents[2] / "containers" / "prepare.py"
EXISTS = {"error_code": "RESOURCE_ALREADY_EXISTS"}
PASSWORD = 'it"s a/päss+wörd'


class Accounts:
    """Answers POST and PATCH with what `answers` holds, first to last: (status, body), or None to hang up."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]] | None] = []
        self.asked: list[str] = []
        self.users: list[str] = []

    def urlopen(self, request: str | Request, timeout: float) -> io.BytesIO:
        if isinstance(request, str):
            return io.BytesIO(b"{}")  # its health
        self.users.append(json.loads(request.data)["username"])
        self.asked.append(f"{request.get_method()} {request.full_url.rpartition('/')[2]}")
        answer = self.answers.pop(0)
        if answer is None:
            raise RemoteDisconnected("closed connection without response")
        status, body = answer[0], io.BytesIO(json.dumps(answer[1]).encode())
        if status >= 400:
            raise HTTPError(request.full_url, status, "no", Message(), body)
        return body


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Accounts:
    account_server = Accounts()
    monkeypatch.setattr(urllib.request, "urlopen", account_server.urlopen)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_AUTH_ADMIN_PASSWORD"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    return account_server


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
    message = str(ended.value)
    assert "***" in message and "refused to make x" in message
    assert not any(part in message for part in ("it", "wörd", "w\\u00f6rd", "w%C3%B6rd", "YWRtaW46"))


def test_waiting_in_vain_tells_no_password(prepare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setattr(prepare, "WAIT_S", -1)

    def refused() -> None:
        raise OSError(f"no connection with password={PASSWORD}")

    with pytest.raises(SystemExit, match=r"^prepare: not reached within -1 s: no connection with password=\*\*\*$"):
        prepare.patiently(refused, OSError)


def test_a_refusal_is_not_tried_again(prepare: ModuleType, accounts: Accounts) -> None:
    for status in (401, 403):
        for answers, action in (
            ([(status, {})], "make x"),
            ([(400, EXISTS), (status, {})], "change the password of x"),
        ):
            accounts.answers = [*answers]
            with pytest.raises(SystemExit, match=f"refused to {action}: .*; check MLFLOW_AUTH_ADMIN_PASSWORD"):
                prepare.account()
