"""A task's own clone of the project at one commit, and DVC in it: nothing but the cache and the remote is shared.

DVC's locks do not hold across containers, so no two tasks ever share a clone. It is removed when the task ends.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.task.children import Ended, ask, stream
from slimtower.common.errors import FULL_DISK, TransientError, UserError
from slimtower.common.files import cache_root
from slimtower.common.s3 import advice, says_refused
from slimtower.registry.client import tracking_uri
from steps.promote.dvc_lock import Stages, dependencies, lock_stages, outputs

LOCK, PARAMS, SOURCES = "dvc.lock", "params.yaml", "sources.json"
REMOTE = "dvc"  # DVC's remote, below SLIMTOWER_REMOTE: beside it lie runs/ and locks/, and DVC has a runs/ of its own
_RUNNING = re.compile(r"^Running stage '", re.MULTILINE)
_PASSING = re.compile(
    r"resolve host|name resolution|unable to access|[Tt]imed? ?out|[Cc]onnection|[Cc]ould not connect|[Cc]annot connect"
    r"|early EOF|hung up|too slow|RPC failed|SlowDown|Service ?Unavailable|InternalError|IncompleteRead"
    rf"|failed to (?:pull|push|transfer|download|upload)|{FULL_DISK}"
)
_REFUSED = re.compile(
    r"Access ?Denied|Forbidden|Permission denied|Authentication failed|error: 40[13]"
    r"|could not read (?:Username|Password)"
)


@dataclass(frozen=True)
class Workspace:
    """A clone, the environment of what runs in it, and the file in which a stage says how it ended."""

    folder: Path
    environment: dict[str, str]
    exit_file: Path

    def git(self, *words: str) -> str:
        """What git answers in the clone; raises what its failure amounts to."""
        done = ask(["git", *words], self.folder, self.environment)
        if done.code:
            raise _git_error(done, f"git {words[0]}", "look at SLIMTOWER_REPO and SLIMTOWER_WORK")
        return done.out.strip()

    def dvc(self, *words: str) -> str:
        """What DVC prints. TransientError if the remote or the disk may have failed, UserError for other failures."""
        done = ask([sys.executable, "-m", "dvc", *words], self.folder, self.environment)
        if done.code:
            passing = words[0] in ("pull", "push", "ls") and not is_refused(done.stderr)
            kind = TransientError if passing or FULL_DISK in done.stderr else UserError
            remedy = advice(done.stderr, "look at dvc.yaml, or SLIMTOWER_REMOTE and what may be done there")
            raise kind(f"dvc {words[0]}: {done.line()}; {remedy}")
        return done.out

    def python(self, *words: str, **variables: str) -> Ended:
        """Run `python -m <words>` in the clone, its output passed on."""
        return stream([sys.executable, "-m", *words], self.folder, self.environment | variables)

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the clone's root."""
        (self.folder / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        """Read a file of the clone's root."""
        return (self.folder / name).read_bytes()

    def lock(self) -> Stages:
        """Stages of dvc.lock."""
        return lock_stages(self.folder / LOCK)

    def stages(self) -> list[str]:
        """Addresses of the stages of dvc.yaml, cells of a matrix one by one, in the order of the file."""
        return self.dvc("stage", "list", "--name-only").split()

    def has_work(self, *targets: str) -> bool:
        """Whether DVC would run a stage, by dvc.lock where data are not here; fetch folders of several stages first."""
        words = ("repro", *targets, "--dry", "--allow-missing")
        done = ask([sys.executable, "-m", "dvc", *words], self.folder, self.environment)
        return done.code != 0 or _RUNNING.search(done.out) is not None  # it fails where new stages lack their inputs

    def fetch_beside(self, stage: str = "") -> list[str]:
        """Pull what other stages write into folders that the commit itself holds, as it does data/score; returns it.

        DVC would take such a folder for one whose content is gone, and run every stage that reads it.
        """
        lock = self.lock()
        read_paths = {dep for entry in lock.values() for dep in dependencies(entry)}
        beside = self._absent_outputs() - set(outputs(lock.get(stage, {})))
        return self._pull({out for out in beside if out.parent in read_paths and (self.folder / out.parent).is_dir()})

    def digests(self, folder: Path) -> dict[Path, str]:
        """Path -> MD5 of each file of an output, as dvc.lock and the remote have it; nothing is pulled."""
        files = json.loads(self.dvc("ls", ".", str(folder), "--recursive", "--show-hash", "--json"))
        return {folder / file["path"]: file["md5"] for file in files}

    def fetch_inputs(self, stage: str) -> list[str]:
        """Pull what dvc.lock knows of the dependencies that are not here; returns the paths.

        `dvc repro --pull` would do so, but not for a folder that several stages write into.
        """
        changes = json.loads(self.dvc("status", "--json", stage)).get(stage, [])
        states = {
            Path(path): state
            for change in changes
            if isinstance(change, dict)
            for path, state in change.get("changed deps", {}).items()
        }
        absent = [path for path, state in states.items() if state == "deleted"]
        partly = [path for path in states if (self.folder / path).is_dir()]  # the commit holds the folder itself
        outs = {out for entry in self.lock().values() for out in outputs(entry)}
        missing = {out for out in outs for dep in absent if _touch(out, dep)}
        return self._pull(missing | {out for out in self._absent_outputs() for dep in partly if dep in out.parents})

    def fetch_output(self, path: Path) -> list[str]:
        """Pull the outputs that hold the path, or lie in it, if they are not here; returns what was pulled."""
        return self._pull({out for out in self._absent_outputs() if _touch(out, path)})

    def _absent_outputs(self) -> set[Path]:
        """What dvc.lock records and is not here."""
        outs = {out for entry in self.lock().values() for out in outputs(entry)}
        return {out for out in outs if not (self.folder / out).exists()}

    def _pull(self, outs: set[Path]) -> list[str]:
        """Pull outputs; returns their paths, sorted."""
        paths = sorted(map(str, outs))
        if paths:
            self.dvc("pull", *paths)
        return paths


def _git_error(done: Ended, where: str, fix: str) -> UserError:
    """A failure of git: TransientError for the network or a full disk, UserError for everything else."""
    kind = TransientError if is_passing(done.stderr) else UserError
    return kind(f"{where}: {done.line()}; {advice(done.stderr, fix)}")


def is_refused(text: str) -> bool:
    """Tell whether a server wants another login or clock, or gives it less than what was asked for."""
    return _REFUSED.search(text) is not None or says_refused(text)


def is_passing(text: str) -> bool:
    """Tell whether the words of git or DVC are of a network, a server or a full disk, and of no refusal."""
    return _PASSING.search(text) is not None and not is_refused(text)


def _touch(first: Path, second: Path) -> bool:
    """Equal, or one below the other."""
    return first == second or first in second.parents or second in first.parents


@contextmanager
def workspace(repository: str, reference: str, remote: str) -> Iterator[Workspace]:
    """Clone a git URL or folder into SLIMTOWER_WORK and check a commit, tag or branch out; removed at the end."""
    parent = Path(os.environ.get("SLIMTOWER_WORK") or tempfile.gettempdir()).resolve()
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slimtower-", dir=parent, ignore_cleanup_errors=True) as scratch:
        clone = Workspace(Path(scratch) / "project", _environment(Path(scratch)), Path(scratch) / "exit")
        words = ["git", "clone", "--quiet", "--no-checkout", "--", repository, str(clone.folder)]
        done = ask(words, scratch, clone.environment)
        if done.code:
            raise _git_error(done, f"SLIMTOWER_REPO: {repository}", "give a git URL or folder that can be cloned")
        clone.git("checkout", "--quiet", "--detach", _commit(clone, reference))
        _configure(clone.folder, remote)
        yield clone


def _commit(clone: Workspace, reference: str) -> str:
    """The commit that a branch of the remote, a tag or a commit's own digits name."""
    for candidate in (f"refs/remotes/origin/{reference}", reference):
        words = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{candidate}^{{commit}}"]
        done = ask(words, clone.folder, clone.environment)
        if done.code == 0:
            return done.out.strip().splitlines()[-1]
    raise UserError(f"SLIMTOWER_REF: the project has no commit, tag or branch {reference!r}; name one that was pushed")


def _environment(scratch: Path) -> dict[str, str]:
    """This process's environment for what runs in the clone: its interpreter first, nobody else's packages."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV"} and not name.startswith("AIRFLOW_")
    }
    own_bin = str(Path(sys.executable).parent)  # stages say `python`; it must be this one
    system = variables.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig")
    (scratch / "gitconfig").write_text(  # a mounted folder may have another owner
        f"[include]\n    path = {system}\n[safe]\n    directory = *\n", encoding="utf-8"
    )
    if variables.get("SLIMTOWER_CACHE"):
        variables["SLIMTOWER_CACHE"] = str(cache_root())  # absolute: the clone is another folder
    return variables | {
        "PATH": f"{own_bin}{os.pathsep}{variables.get('PATH', os.defpath)}",
        "DVC_NO_ANALYTICS": "true",
        "GIT_CONFIG_SYSTEM": str(scratch / "gitconfig"),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",  # bytes a second, below which a transfer has stalled
        "GIT_HTTP_LOW_SPEED_TIME": "120",  # seconds
        "MLFLOW_TRACKING_URI": tracking_uri(),
    }


def _configure(folder: Path, remote: str) -> None:
    """DVC's own settings of this clone. Links save a copy of every input; DVC makes them read-only."""
    cache = cache_root() / "dvc" if os.environ.get("SLIMTOWER_CACHE") else folder / ".dvc" / "cache"
    config = (
        f"[core]\n    remote = tasks\n    check_update = false\n    site_cache_dir = '{folder / '.dvc' / 'tmp'}'\n"
        f"[cache]\n    dir = '{cache}'\n    type = \"reflink,hardlink,copy\"\n"
        f"['remote \"tasks\"']\n    url = '{remote.rstrip('/')}/{REMOTE}'\n"
    )
    (folder / ".dvc" / "config.local").write_text(config, encoding="utf-8")
