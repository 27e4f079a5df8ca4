"""What a task's failures amount to: to be fixed, to be tried again, or killed."""

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from pipeline.task import stage, workspace
from pipeline.task.__main__ import as_user_error
from pipeline.task.begin import _base
from pipeline.task.children import Ended
from pipeline.task.run import TaskRun, digest
from pipeline.task.run_store import FolderStore
from pipeline.task.stage import _failure, _push
from pipeline.task.workspace import Workspace, _git_error
from slimtower.common.errors import OutOfMemory, TransientError, UserError

TIMEOUT = "ERROR: unexpected error - Connect timeout on endpoint URL: http://store:9000/x"
UPLOAD = "ERROR: failed to push data to the cloud - 1 files failed to upload"
SKEWED = (
    "ERROR: failed to transfer 'x' - The difference between the request time and the server's time is too large.:"
    f" An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: The difference\n{UPLOAD}"
)
EXPIRED = f"ERROR: failed to transfer 'x' - An error occurred (ExpiredToken) when calling PutObject\n{UPLOAD}"
EXPIRED_HEAD = (
    "ERROR: unexpected error - [Errno 22] Bad Request:"
    " An error occurred (400) when calling the HeadObject operation: Bad Request"
)
FAILED_PULL = "ERROR: failed to pull data from the cloud - 3 files failed to download"


AWAY = "fatal: unable to access 'https://host/': "


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (f"{AWAY}The requested URL returned error: 403", UserError),
        (f"{AWAY}The requested URL returned error: 401", UserError),
        ("remote: Invalid username or token.\nfatal: Authentication failed for 'https://host/'", UserError),
        ("fatal: could not read Username for 'https://host': terminal prompts disabled", UserError),
        ("fatal: repository '/no/such' does not exist", UserError),
        (f"{AWAY}SSL certificate problem: unable to get local issuer certificate", UserError),
        (f"{AWAY}server certificate verification failed. CAfile: none", UserError),
        (f"{AWAY}The requested URL returned error: 503", TransientError),
        (f"{AWAY}Could not resolve host: host", TransientError),
        ("error: RPC failed; curl 28 Operation too slow.\nfatal: expected packfile", TransientError),
    ],
)
def test_a_refused_login_is_to_be_fixed_and_a_lost_network_to_be_tried_again(
    stderr: str, kind: type[UserError]
) -> None:
    assert type(_git_error(Ended(128, "", stderr), "git", "look")) is kind


@pytest.mark.parametrize(
    ("stderr", "kind", "fix"),
    [
        (SKEWED, UserError, "; set the clock of this machine, or of the server"),
        (EXPIRED, UserError, "SLIMTOWER_REMOTE"),
        (EXPIRED_HEAD, UserError, "SLIMTOWER_REMOTE"),
        (f"ERROR: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed\n{UPLOAD}", UserError, "AWS_CA_BUNDLE"),
        (UPLOAD, TransientError, "SLIMTOWER_REMOTE"),
    ],
)
def test_a_push_with_another_clock_or_an_expired_token_is_not_tried_again(
    stderr: str, kind: type[UserError], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "ask", lambda *_: Ended(1, "", stderr))
    with pytest.raises(UserError, match=fix) as caught:
        Workspace(tmp_path, {}, tmp_path / "exit").dvc("push")
    assert type(caught.value) is kind


@pytest.mark.parametrize("lock", ["", "of another run"])
def test_a_run_after_a_publish_that_was_cut_short_begins_without_a_lock(tmp_path: Path, lock: str) -> None:
    """It announces what that one made: with its lock nothing would seem new, and with begin.json another's run."""
    entry = {"cmd": "x", "outs": [{"path": "data", "md5": "ab1"}]}
    content = yaml.safe_dump({"schema": "2.0", "stages": {"ingest": entry}}).encode()
    store = FolderStore(tmp_path / "remote")
    store.write("locks/latest/dvc.lock", content)
    store.write("dvc/files/md5/ab/1", b"")
    clone = Workspace(tmp_path, {}, tmp_path / "exit")
    assert _base(store, clone, ["ingest"], {"lock": digest(content)}) == {"ingest": entry}
    assert _base(store, clone, ["ingest"], {"lock": lock} if lock else None) == {}


@pytest.mark.parametrize(
    ("recorded", "stderr", "code"),
    [
        (None, TIMEOUT, 75),  # before the stage started
        ('{"code": 0, "line": ""}', TIMEOUT, 75),  # after it ended well
        (None, FAILED_PULL, 75),
        (None, "ERROR: unexpected error - Forbidden: An error occurred (403)", 3),
        (None, EXPIRED_HEAD, 3),
        (None, "ERROR: stage 'grow' is broken", 1),
        ('{"code": 0, "line": ""}', "connection lost, next try\nERROR: output 'models' does not exist", 1),
        ('{"code": 1, "line": "a defect"}', TIMEOUT, 1),
    ],
)
def test_a_transfer_that_failed_is_no_defect(tmp_path: Path, recorded: str | None, stderr: str, code: int) -> None:
    exit_file = tmp_path / "exit"
    if recorded:
        exit_file.write_text(recorded)
    run = TaskRun("run", "repository", FolderStore(tmp_path / "remote"))
    assert _failure(run, exit_file, "grow", Ended(255, "", stderr)).exit_code == code


@dataclass(frozen=True)
class Pushing(Workspace):
    """A clone whose pushes end as they are told to."""

    ends: list[UserError | None] = field(default_factory=list)

    def dvc(self, *words: str) -> str:
        assert words == ("push", "--run-cache", "teach")
        if error := self.ends.pop(0):
            raise error
        return ""


def test_a_push_is_tried_again_where_that_may_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(stage.time, "sleep", waited.append)
    away, refused = TransientError("away"), UserError("refused")

    def pushed(*ends: UserError | None) -> None:
        waited.clear()
        _push(Pushing(tmp_path, {}, tmp_path / "exit", list(ends)), ["teach"])

    pushed(away, away, away, None)
    assert waited == [10, 60, 300]
    with pytest.raises(TransientError):
        pushed(away, away, away, away)
    with pytest.raises(UserError, match="refused"):
        pushed(away, refused)
    assert waited == [10]


def test_what_the_system_refuses_a_task() -> None:
    again = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOSPC)
    kinds = dict.fromkeys(again, TransientError) | {errno.ENOMEM: OutOfMemory, errno.EACCES: UserError}
    for number, kind in kinds.items():
        assert type(as_user_error("begin", OSError(number, os.strerror(number)))) is kind
