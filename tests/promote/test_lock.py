"""One holder at a time, also when a lock was left behind; a holder that lost it does not write."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from races import winners

from slimtower.common.errors import TransientError, UserError
from steps.promote.lock import FolderLockStore, Lock

pytestmark = pytest.mark.medium


def lock(folder: Path, wait_s: float = 0.0, expires_s: float = 60.0) -> Lock:
    return Lock(FolderLockStore(folder), "retriever", wait_s, expires_s)


def left_behind(folder: Path, pid: int, age_s: float = 0.0, space: str = "elsewhere") -> Path:
    assert FolderLockStore(folder).put_new(
        "retriever/00000003", json.dumps({"id": "x", "host": "other", "pid": pid, "in": space})
    )
    path = folder / "retriever/00000003"
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.mark.parametrize("links", [True, False])
def test_only_the_first_of_many_writers_puts_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if not links:  # as some file systems
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = FolderLockStore(tmp_path)
    wins = winners(8, lambda number: store.put_new("a/1", f"body of {number}"))
    assert len(wins) == 1
    assert store.entries("a")["a/1"].body == f"body of {wins[0]}"
    assert not list(tmp_path.glob(".*"))


def test_while_one_holds_it_another_gives_up_and_says_who_holds_it(tmp_path: Path) -> None:
    (tmp_path / "retriever").mkdir()
    foreign_file = tmp_path / "retriever/.nfs0000000001"  # no lock
    foreign_file.write_bytes(b"\xff left by the file system")
    with lock(tmp_path).hold() as guard:
        guard()
        with pytest.raises(TransientError, match=f"held by process {os.getpid()} on"), lock(tmp_path).hold():
            pass
        guard()
    with lock(tmp_path).hold():
        pass
    assert FolderLockStore(tmp_path).entries("retriever") == {} and foreign_file.exists()


def test_many_threads_never_hold_it_together(tmp_path: Path) -> None:
    inside, max_inside, rounds = 0, 0, []

    def work() -> None:
        nonlocal inside, max_inside
        for _ in range(3):
            with lock(tmp_path, wait_s=60).hold():
                inside += 1
                max_inside = max(max_inside, inside)
                time.sleep(0.002)
                inside -= 1
                rounds.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max_inside, len(rounds)) == (1, 12)


def test_a_lock_of_a_killed_process_of_this_machine_is_taken_over_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from steps.promote.lock import Lock;"
        " from steps.promote.lock import FolderLockStore\n"
        "with Lock(FolderLockStore(Path(sys.argv[1])), 'retriever', 0, 3600).hold(): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2]).returncode == 9
    assert len(FolderLockStore(tmp_path).entries("retriever")) == 1
    with lock(tmp_path, expires_s=3600).hold() as guard:
        guard()
    assert FolderLockStore(tmp_path).entries("retriever") == {}


def test_a_lock_of_another_machine_is_respected_until_it_expires_whatever_the_clock_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = left_behind(tmp_path, pid=2**22 + 1, age_s=30), time.time
    for hours in (-5, 0, 5):
        with monkeypatch.context() as patch, pytest.raises(TransientError, match="on other for 3"):
            patch.setattr(time, "time", lambda hours=hours: clock() + hours * 3600)
            with lock(tmp_path, expires_s=60).hold():
                pass
    assert path.exists()
    with lock(tmp_path, expires_s=20).hold():
        assert list(FolderLockStore(tmp_path).entries("retriever")) == ["retriever/00000004"]


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b'{"id": "x"', b"null"])
def test_a_lock_that_a_crash_has_damaged_is_respected_until_it_expires(tmp_path: Path, body: bytes) -> None:
    path = left_behind(tmp_path, pid=1)
    path.write_bytes(body)
    with pytest.raises(TransientError, match=r"held by another process for [01] s; try again"), lock(tmp_path).hold():
        pass
    assert path.read_bytes() == body
    os.utime(path, (time.time() - 100,) * 2)
    with lock(tmp_path).hold() as guard:
        guard()
    assert FolderLockStore(tmp_path).entries("retriever") == {}


def test_a_lock_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, []

    def fsync(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").read_text(), (tmp_path / "retriever/00000001").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert FolderLockStore(tmp_path).put_new("retriever/00000001", "body")
    assert synced == [("body", False)]


def test_a_holder_that_was_overtaken_or_took_too_long_may_not_write(tmp_path: Path) -> None:
    with lock(tmp_path).hold() as guard:
        for key in FolderLockStore(tmp_path).entries("retriever"):
            FolderLockStore(tmp_path).delete(key)
        with pytest.raises(TransientError, match="given up"):
            guard()
    with lock(tmp_path, expires_s=0.2).hold() as guard:
        time.sleep(0.15)
        with pytest.raises(TransientError, match="held too long"):
            guard()


def test_a_writer_that_decided_on_an_old_look_yields_to_the_one_that_came_between(tmp_path: Path) -> None:
    """It saw a stale lock; meanwhile that was overtaken, released, and taken anew under a lower number."""
    store, rival = FolderLockStore(tmp_path), json.dumps({"id": "y", "host": "h", "pid": 1, "in": "elsewhere"})

    class LookedBefore(FolderLockStore):
        looks = 0

        def entries(self, name):
            self.looks += 1
            if self.looks == 1:
                left_behind(tmp_path, pid=1, age_s=100)
                seen = super().entries(name)
                self.delete("retriever/00000003")
                assert self.put_new("retriever/00000001", rival)
                return seen
            return super().entries(name)

    with pytest.raises(TransientError), Lock(LookedBefore(tmp_path), "retriever", 0, 60).hold():
        pass
    assert [entry.body for entry in store.entries("retriever").values()] == [rival]


def test_a_store_that_overwrites_is_found_out(tmp_path: Path) -> None:
    class Overwrites(FolderLockStore):
        def put_new(self, key, body):
            self.delete(key)
            return super().put_new(key, body)

    with pytest.raises(UserError, match="ignores If-None-Match"), Lock(Overwrites(tmp_path), "a", 0, 60).hold():
        pass


def test_a_put_whose_answer_got_lost_is_still_a_put(tmp_path: Path) -> None:
    class Deaf(FolderLockStore):
        puts = 0

        def put_new(self, key, body):
            self.puts += 1
            written = super().put_new(key, body)
            return written and self.puts > 1  # the retry within the client finds the key taken

    with Lock(Deaf(tmp_path), "retriever", 0, 60).hold() as guard:
        guard()
    assert FolderLockStore(tmp_path).entries("retriever") == {}


def test_a_store_that_fails_after_the_put_leaves_no_lock_behind(tmp_path: Path) -> None:
    class Fails(FolderLockStore):
        looks = 0

        def entries(self, name):
            self.looks += 1
            if self.looks == 2:
                raise ConnectionError
            return super().entries(name)

    with pytest.raises(ConnectionError), Lock(Fails(tmp_path), "retriever", 0, 60).hold():
        pass
    assert FolderLockStore(tmp_path).entries("retriever") == {}
