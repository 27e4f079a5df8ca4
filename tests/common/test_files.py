"""Outputs appear whole or not at all."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slimtower.common.errors import UserError
from slimtower.common.files import _kernel, last_used, read_json, staged_file, staged_folder, write_json


@pytest.mark.faults("files")
def test_a_failed_block_leaves_the_old_folder_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staged_folder(target) as staging:
        (staging / "a").write_text("old")
    with pytest.raises(RuntimeError), staged_folder(target) as staging:
        (staging / "a").write_text("new")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    with staged_folder(target) as staging:
        (staging / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.faults("files")
def test_a_kill_while_the_old_folder_goes_leaves_the_new_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    with staged_folder(target) as staging:
        (staging / "a").write_text("old")

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), staged_folder(target) as staging:
        (staging / "a").write_text("new")
        monkeypatch.setattr(shutil, "rmtree", killed)
    monkeypatch.undo()
    assert (target / "a").read_text() == "new"
    with staged_folder(target) as staging:  # sweeps what the kill left
        (staging / "a").write_text("newer")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.faults("files")
def test_the_working_folder_and_those_above_it_are_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "project/data"
    here.mkdir(parents=True)
    (here / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(here)
    for target in ("/", ".", "..", "", "../../project", "x/../..", str(here), str(tmp_path), str(tmp_path / "link")):
        expected = pytest.raises(UserError, match="is the working folder or holds it, so it is not replaced")
        with expected, staged_folder(Path(target)):
            raise AssertionError("nothing may be staged")
    assert (here / "kept").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "project"]


@pytest.mark.faults("files")
def test_two_writers_of_one_target_do_not_remove_each_others_work(tmp_path: Path) -> None:
    target = tmp_path / "shard"
    with staged_folder(target) as first:
        (first / "a").write_text("first")
        with staged_folder(target) as second:  # as another process does that makes the same shard of a cache
            (second / "a").write_text("second")
        (first / "b").write_text("first")
    assert [(path.name, path.read_text()) for path in sorted(target.iterdir())] == [("a", "first"), ("b", "first")]
    with staged_file(tmp_path / "file") as earlier, staged_file(tmp_path / "file") as later:  # of equal pids
        earlier.write_text("one")
        later.write_text("other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "shard"]


@pytest.mark.faults("files")
@pytest.mark.parametrize("locks", [True, False])
def test_a_writer_that_no_lock_shows_keeps_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f".staging.shard.0badcafe.{socket.gethostname()}.{ended.pid}.0badcafe"
    fresh, old = (tmp_path / f".staging.shard.0badcafe.else.where.{os.getpid()}.{name}" for name in ("fresh", "old"))
    near = tmp_path / f".staging.shard.{_kernel()}.container.{os.getpid()}.near"  # its lock would be seen here
    for folder in (dead, fresh, old, near):
        folder.mkdir()
        (folder / "a").touch()
    for path in (old / "a", old):
        os.utime(path, (0, 0))
    with staged_folder(tmp_path / "shard") as first:
        (first / "a").write_text("first")
        with staged_folder(tmp_path / "shard") as second:
            (second / "a").write_text("second")
        (first / "b").write_text("first")
    assert sorted(path.name for path in (tmp_path / "shard").iterdir()) == ["a", "b"]
    assert {path.name for path in tmp_path.iterdir()} == {"shard", fresh.name} | (set() if locks else {near.name})


@pytest.mark.faults("files")
def test_only_what_was_left_of_the_same_target_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".staging.other.1").mkdir()
    with staged_folder(tmp_path / "*") as staging:
        (staging / "a").write_text("a")
    assert (tmp_path / ".staging.other.1").is_dir()


@pytest.mark.faults("files")
def test_json_is_equal_bytes_for_equal_content_and_never_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    write_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "c.json", {"x": float("nan")})
    assert not list(tmp_path.glob("*c.json*"))


@pytest.mark.faults("files")
def test_missing_and_broken_json_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.json: not found; run"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(UserError, match=r"y\.json: not JSON"):
        read_json(tmp_path / "y.json")


def test_what_another_process_removed_meanwhile_was_used_longest_ago(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert sorted([tmp_path / "there", tmp_path / "gone"], key=last_used) == [tmp_path / "gone", tmp_path / "there"]


@pytest.mark.faults("files")
@pytest.mark.parametrize("function", ["open", "flock"])
def test_a_folder_that_another_process_took_for_a_killed_ones_is_made_again(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment that it is there and the one that it is locked."""
    module = {"open": os, "flock": fcntl}[function]
    real, removed = getattr(module, function), list[Path]()

    def after_another(*arguments: object) -> object:
        for folder in [] if removed else tmp_path.glob(".staging.*"):
            removed.append(folder)
            folder.rmdir()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, after_another)
        with staged_folder(tmp_path / "out") as staging:
            (staging / "a").write_text("a")
    assert removed and removed[0] != staging
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out/a").is_file()
