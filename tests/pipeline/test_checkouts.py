"""DVC works in every kind of checkout, and what a run writes into dvc.lock is neither shown nor lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import surroundings

PROJECT = Path(__file__).parents[2]
STAGES = "stages:\n  make: {cmd: mkdir -p data && cp given data/made, deps: [given], outs: [data/made]}\n"


def git(*words: str | Path) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *map(str, words)], capture_output=True, text=True, check=True)
    return done.stdout


def checkout(kind: str, folder: Path) -> Path:
    """A project with this one's settings of git and DVC, as a clone, a submodule, a worktree or a copy without git."""
    origin = folder / "origin"
    (origin / "data").mkdir(parents=True)
    for name in (".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore"):
        (origin / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, origin / name)
    (origin / "dvc.yaml").write_text(STAGES)
    (origin / "dvc.lock").write_text("schema: '2.0'\n")
    (origin / "given").write_text("1")
    if kind == "copy":
        return origin
    git("init", "-q", origin)
    git("-C", origin, "add", "-A")
    git("-C", origin, "commit", "-qm", "first")
    if kind == "worktree":
        git("-C", origin, "worktree", "add", "-q", "--detach", folder / "tree")
        return folder / "tree"
    if kind == "submodule":
        git("init", "-q", folder / "above")
        git("-C", folder / "above", "submodule", "add", "-q", origin, "project")
        return folder / "above/project"
    git("clone", "-q", origin, folder / "clone")
    return folder / "clone"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clone", "submodule", "worktree", "copy"])
def test_a_run_works_and_its_lock_is_neither_shown_nor_lost(kind: str, tmp_path: Path) -> None:
    project = checkout(kind, tmp_path)

    def dvc(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "dvc", *words], cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert surroundings.dvc_finds_git(project) == (kind in ("clone", "worktree"))
    if kind in ("copy", "submodule"):
        surroundings.without_git(project)
    assert bool(surroundings.hide_lock(project)) == (kind == "clone")
    assert surroundings.hide_lock(project) == "", "once is enough"
    dvc("config", "--local", "core.check_update", "false")  # as the pipeline's own settings of a checkout are written
    dvc("repro")
    lock = (project / "dvc.lock").read_text()
    assert (project / "data/made").read_text() == "1" and "make" in lock
    assert "up to date" in dvc("status")
    if kind == "clone":
        assert git("-C", project, "status", "--porcelain") == ""
        git("-C", project, "checkout", ".")
        git("-C", project, "stash")
        assert (project / "dvc.lock").read_text() == lock
        git("-C", project, "update-index", "--no-skip-worktree", "dvc.lock")
        assert " M dvc.lock" in git("-C", project, "status", "--porcelain")
        git("-C", project, "checkout", "dvc.lock")
        assert "cached" in dvc("repro") and (project / "dvc.lock").read_text() == lock, "found again"
