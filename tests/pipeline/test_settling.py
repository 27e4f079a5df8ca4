"""What a run lacks around it is set in its environment, and nothing that was set is changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.fs import localfs
from dvc.rwlock import rwlock

from pipeline import surroundings
from pipeline.plain_copy import plain_copy
from slimtower.common.errors import UserError

SET = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "HF_HOME", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", *surroundings.QUIET)
ALWAYS = surroundings.QUIET | {"OMP_WAIT_POLICY": "passive"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ample machine: a home, whole cores. What `settle` sets is taken back."""
    for name in SET:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(surroundings, "cores", lambda: 8)
    monkeypatch.setattr(surroundings, "cores_seen", lambda: 8)


def settled() -> dict[str, str]:
    surroundings.settle()
    return {name: os.environ[name] for name in SET if name in os.environ}


def test_a_home_that_cannot_be_written_or_is_none_is_replaced_below_the_cache(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settled() == ALWAYS, "where nothing lacks"
    monkeypatch.setenv("HOME", "/proc/nonexistent")
    monkeypatch.setenv("MPLCONFIGDIR", "/somewhere")
    replaced = ALWAYS | {"XDG_CACHE_HOME": str(own_cache / "home"), "MPLCONFIGDIR": "/somewhere"}
    assert settled() == replaced

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(surroundings.Path, "home", homeless)
    assert settled() == replaced


def test_models_below_a_home_that_can_only_be_read_are_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    monkeypatch.setattr(surroundings.os, "access", lambda path, mode: mode == os.R_OK)
    assert settled()["HF_HOME"] == str(tmp_path / ".cache/huggingface")


def test_a_share_of_the_cores_gets_as_many_threads_unless_they_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "cores", lambda: 2)
    assert settled()["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert settled()["OMP_NUM_THREADS"] == "3"


@pytest.mark.medium
def test_dvc_works_without_git_once_it_is_told(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert not surroundings.in_git(inner)
    with pytest.raises(UserError, match=r"no git checkout, and DVC cannot be told so: .+; use a clone"):
        surroundings.without_git(inner)
    (inner / ".dvc").mkdir()
    (inner / ".dvc/config.local").write_text("[cache]\n    dir = 'a, b #c'\n")
    surroundings.without_git(inner)
    surroundings.without_git(inner)
    config = (inner / ".dvc/config.local").read_text()
    assert config.count("no_scm = true") == 1 and "a, b #c" in config
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")  # as in a worktree
    assert surroundings.in_git(inner), "git may lie above"


@pytest.mark.medium
@pytest.mark.skipif(not Path(".git").exists(), reason="not a git checkout: nothing to compare with")
def test_a_plain_copy_holds_what_git_tracks_or_would(tmp_path: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    plain_copy(Path.cwd(), tmp_path / "copy")
    inside = {"data/rank/README.md", "data/score/README.md"}  # below ignored folders, which the pipeline makes itself
    assert files_in(tmp_path / "copy") == {name for name in listed if name and Path(name).is_file()} - inside


@pytest.mark.parametrize(
    ("content", "stays"), [("", False), ('{"write": {"/a": {"pi', False), ('{"write": {}}', True), (None, False)]
)
def test_a_list_of_dvcs_locks_that_a_kill_cut_is_removed(tmp_path: Path, content: str | None, stays: bool) -> None:
    listed = tmp_path / ".dvc/tmp/rwlock"
    listed.parent.mkdir(parents=True)
    if content is not None:
        listed.write_text(content)
    surroundings.mend_locks(tmp_path)
    assert listed.exists() == stays
    if not stays:  # and DVC works with what is left
        with rwlock(str(listed.parent), localfs, "test", ["a"], [], False):
            assert json.loads(listed.read_text())["read"]


@pytest.mark.slow
def test_a_list_of_locks_that_dvc_is_writing_stays(tmp_path: Path) -> None:
    listed = tmp_path / ".dvc/tmp/rwlock"
    listed.parent.mkdir(parents=True)
    listed.write_text("")
    program = (
        "import sys; from dvc.lock import make_lock; held = make_lock(sys.argv[1], tmp_dir='.'); held.lock();"
        " print(1, flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(listed) + ".lock"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout and writer.stdout.readline() == b"1\n"
        surroundings.mend_locks(tmp_path)
        assert listed.exists()
        writer.communicate(b"\n")


def test_the_folders_of_scores_are_there_before_a_run(tmp_path: Path) -> None:
    surroundings.lay_out(tmp_path)
    (tmp_path / "data/score/other").mkdir()
    surroundings.lay_out(tmp_path)
    assert [path.name for path in (tmp_path / "data/score").iterdir()] == ["other"]
    assert (tmp_path / "data/rank").is_dir()


def test_a_plain_copy_takes_over_what_is_new_and_keeps_what_is_ignored(tmp_path: Path) -> None:
    root, copy = tmp_path / "project", tmp_path / "project" / "runs" / "x"
    files = {
        ".gitignore": "# of the project\n__pycache__/\n*.egg-info/\n/data/*\n!/data/score/\n/data/score/*\n/runs/\n",
        ".dvc/.gitignore": "/config.local\n/cache\n",
        ".dvc/config": "", ".dvc/config.local": "own", ".dvc/cache/object": "", ".git/HEAD": "",
        "params.yaml": "a: 1", "steps/data/kept.py": "", "steps/gone.py": "", "steps/__pycache__/x.pyc": "",
        "x.egg-info/y": "", "data/large": "",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    plain_copy(root, copy)
    assert files_in(copy) == {
        ".gitignore", ".dvc/.gitignore", ".dvc/config", "params.yaml", "steps/data/kept.py", "steps/gone.py"
    }  # fmt: skip

    for name in ("data/output", ".dvc/config.local", ".git", "steps/stale.py"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("of the copy")
    (root / "steps" / "gone.py").unlink()
    (root / "params.yaml").write_text("a: 2")
    plain_copy(root, copy)
    assert files_in(copy) == {
        ".gitignore", ".dvc/.gitignore", ".dvc/config", ".dvc/config.local", "params.yaml", "steps/data/kept.py",
        "data/output",
    }  # fmt: skip
    assert (copy / "params.yaml").read_text() == "a: 2"
    assert (copy / ".dvc" / "config.local").read_text() == "of the copy"


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
