"""What a run may lack around it, a home to write to, git, whole cores or DVC's own state, and what is set instead."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.limits import cores, cores_seen
from slimtower.common.errors import UserError
from slimtower.common.files import cache_root
from slimtower.common.masking import redacted

QUIET = {
    "DVC_NO_ANALYTICS": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",
}  # nothing is told to anybody, with or without `make`


def settle() -> None:
    """Set in the environment what libraries lack here; what is set already stays.

    Call it before torch is imported: torch reads then how many threads it has and how they wait. They are to wait
    passively. Beside another process, threads that spin take processor time from those that they wait for.
    """
    variables = QUIET | {"OMP_WAIT_POLICY": "passive"} | _instead_of_home()
    if (allowed := cores()) < cores_seen():
        variables["OMP_NUM_THREADS"] = str(allowed)
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def lay_out(root: Path) -> None:
    """Make the folders that stages depend on though none has to write into them: a clone has them, a copy may not."""
    for name in ("rank", "score"):
        (root / "data" / name).mkdir(parents=True, exist_ok=True)


def mend_locks(root: Path) -> None:
    """Remove DVC's list of who reads and writes what where a kill cut it in two: DVC would refuse every further run."""
    from dvc.lock import LockError, make_lock

    folder = root / ".dvc/tmp"
    listed = folder / "rwlock"
    if _is_intact(listed):
        return
    try:
        with make_lock(str(folder / "rwlock.lock"), tmp_dir=str(folder)):  # as DVC holds it while it writes
            if not _is_intact(listed):
                listed.unlink()
    except LockError:
        pass  # DVC is at work, and says so itself


def pid_at_work(root: Path) -> str:
    """Pid of a process that runs a stage in this folder, by DVC's list of who reads and writes what; "" for none."""
    listed = root / ".dvc/tmp/rwlock"
    text = listed.read_text(encoding="utf-8", errors="replace") if listed.is_file() else ""
    return next((pid for pid in re.findall(r'"pid": (\d+)', text) if _lives(int(pid))), "")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _is_intact(path: Path) -> bool:
    """Is it absent, or JSON?"""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True


def in_git(root: Path) -> bool:
    """Whether the folder lies in a git checkout."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def without_git(root: Path) -> None:
    """Tell DVC, for this folder alone, that there is no git."""
    command = [sys.executable, "-m", "dvc", "config", "--local", "core.no_scm", "true"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        reason = redacted(done.stderr).strip()[:300]
        raise UserError(f"{root}: no git checkout, and DVC cannot be told so: {reason}; use a clone")


def dvc_finds_git(root: Path) -> bool:
    """Whether DVC takes the folder for a git checkout; it knows no submodules."""
    if not in_git(root):
        return False
    link = root / ".git"
    return not (link.is_file() and "/modules/" in link.read_text(encoding="utf-8", errors="replace"))


def hide_lock(root: Path) -> str:
    """Let git pass over what runs here change in dvc.lock: a line that says so, "" if there is nothing to do.

    dvc.lock is tracked, and holds this machine's digests after a run. So a run leaves `git status` clean, and neither
    `git checkout .` nor `git stash` takes away what `make promote` compares with. Worktrees and submodules stay as they
    are.
    """
    if not (root / ".git").is_dir() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(root)]
    listed = subprocess.run([*git, "ls-files", "-v", "--", "dvc.lock"], capture_output=True, text=True)
    if not listed.stdout.startswith("H "):
        return ""
    if subprocess.run([*git, "update-index", "--skip-worktree", "dvc.lock"], capture_output=True).returncode:
        return ""
    return (
        "git passes over dvc.lock from now on; before a `git pull`: `git update-index --no-skip-worktree dvc.lock &&"
        " git checkout dvc.lock` (the next run finds what is made in DVC's cache)"
    )


def _instead_of_home() -> dict[str, str]:
    """Where libraries write instead of a home that is not there or cannot be written."""
    home = _home()
    if home and os.access(home, os.W_OK):
        return {}
    instead = cache_root() / "home"
    variables = {"XDG_CACHE_HOME": str(instead), "MPLCONFIGDIR": str(instead / "matplotlib")}
    if home and "XDG_CACHE_HOME" not in os.environ and os.access(home / ".cache/huggingface", os.R_OK):
        variables["HF_HOME"] = str(home / ".cache/huggingface")  # models that were fetched are still found
    return variables


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user id without a name, as some containers have
        return None
