"""Calls that wait in files: in order, whole, with the files that they name, held by one process at a time."""

import errno
import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from steps.tracking import stage_run
from steps.tracking.stage_run import Spool, waiting_spools

pytestmark = pytest.mark.faults("MLflow away")


def test_calls_come_back_in_order_with_copies_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("one")
    (tmp_path / "report.json").write_text("{}")
    spool = Spool.make(tmp_path / "place", {"stage": "teach"})
    spool.add("metrics", {"values": {"loss": 0.5}, "step": 1})
    spool.add("artifact", {"path": tmp_path / "report.json"})
    spool.add("model", {"folder": tmp_path / "model", "name": "teacher"})
    (tmp_path / "model/weights").write_text("of a later run")
    assert list(waiting_spools(tmp_path / "place")) == []  # held
    spool.close()
    (waiting,) = (
        candidate for candidate in waiting_spools(tmp_path / "place") if candidate.opening == {"stage": "teach"}
    )
    waiting = Spool(waiting.folder)
    first, second, third = waiting.unsent()
    assert first == ("metrics", {"values": {"loss": 0.5}, "step": 1})
    assert second[1]["path"].name == "report.json" and second[1]["path"].read_text() == "{}"
    assert third[1]["name"] == "teacher" and (third[1]["folder"] / "weights").read_text() == "one"
    assert list(waiting.unsent()) == []  # all were made
    waiting.remove()
    assert list((tmp_path / "place").iterdir()) == []


def test_a_call_that_failed_and_those_behind_it_wait_and_a_line_cut_short_is_none(tmp_path: Path) -> None:
    spool = Spool.make(tmp_path, {})
    for number in range(4):
        spool.add("tag", {"name": str(number)})
    spool.close()
    calls = spool.folder / "calls.jsonl"
    calls.write_bytes(calls.read_bytes()[:-7])  # its process was killed while it wrote

    def send() -> list[str]:
        sent = []
        with pytest.raises(ConnectionError):
            for _, arguments in Spool(spool.folder).unsent():
                if arguments["name"] == "1":
                    raise ConnectionError
                sent.append(arguments["name"])
        return sent

    assert [send(), send()] == [["0"], []]
    assert [arguments["name"] for _, arguments in Spool(spool.folder).unsent()] == ["1", "2"]


def test_what_another_process_has_just_sent_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the lock while this one opened the file, and let go of it, and of all, before this one asked."""
    spool = Spool.make(tmp_path, {})
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: (spool.remove(), lock(*arguments)))
    assert list(waiting_spools(tmp_path)) == []


def test_calls_wait_on_a_file_system_without_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    spool = Spool.make(tmp_path, {"stage": "teach"})
    spool.add("tag", {"name": "a"})
    assert list(waiting_spools(tmp_path)) == [], "its process may go on"
    spool.close()
    two_days_ago = time.time() - 2 * 86400
    os.utime(spool.folder / "calls.jsonl", (two_days_ago, two_days_ago))
    assert [waiting.opening for waiting in waiting_spools(tmp_path)] == [{"stage": "teach"}]
    assert [path.name for path in tmp_path.iterdir()] == [spool.folder.name]


def test_a_kill_while_one_is_deleted_leaves_nothing_to_send_or_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.make(tmp_path, {"stage": "teach"})
    with monkeypatch.context() as killed:
        killed.setattr(stage_run.shutil, "rmtree", lambda *_, **__: None)
        spool.remove()
    assert len(list(tmp_path.iterdir())) == 1 and list(waiting_spools(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("largest", "free"), [(3, 10**6), (2**28, 39)])
def test_what_is_too_large_is_named_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, free: int
) -> None:
    monkeypatch.setattr(stage_run, "LARGEST", largest)
    monkeypatch.setattr(stage_run.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    (tmp_path / "large").write_bytes(b"1234")
    spool = Spool.make(tmp_path / "place", {})
    assert spool.add("artifact", {"path": tmp_path / "large"}) == tmp_path / "large"
    assert list(spool.unsent()) == [] and not (spool.folder / "files").exists()
