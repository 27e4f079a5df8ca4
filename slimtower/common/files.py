"""Files that appear whole or not at all, and their digests."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimtower.common.errors import TransientError, UserError

if TYPE_CHECKING:
    import pyarrow as pa

_OLD = 86_400  # seconds without a change, after which what another host's writer left is nobody's


def cache_root() -> Path:
    """Absolute SLIMTOWER_CACHE, or `.cache/slimtower` here; UserError for a URL."""
    setting = os.environ.get("SLIMTOWER_CACHE") or ".cache/slimtower"
    if "://" in setting:
        raise UserError(f"SLIMTOWER_CACHE is {setting!r}; give a folder (a mounted volume serves several machines)")
    return Path(setting).resolve()


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a fresh folder beside `target`; rename it onto `target` when the block succeeds.

    What a killed run left of the same target is removed first; what another process is writing stays, and the last one
    to end is kept. UserError for the working folder and those above it.
    """
    if Path.cwd().is_relative_to(target.resolve()):
        raise UserError(f"{target}: is the working folder or holds it, so it is not replaced; name a folder below")
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".staging.{target.name}."  # .dvcignore keeps these out of folders that stages depend on
    for stale in target.parent.glob(f"{glob.escape(prefix)}*"):
        _remove_unless_held(stale, prefix)
    with ExitStack() as locks:
        staging = _locked_folder(target.parent, prefix, locks)
        staging.chmod(0o755)  # mkdtemp makes it private; outputs are read by other users and containers
        try:
            yield staging
            while not _replaces(staging, target):
                # moved aside first: a folder that is being removed must never be taken for a whole one
                old = _locked_folder(target.parent, prefix, locks)
                with suppress(FileNotFoundError):  # another process was faster
                    target.rename(old / "old")
                done = _replaces(staging, target)
                shutil.rmtree(old, ignore_errors=True)
                if done:
                    break
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _replaces(staging: Path, target: Path) -> bool:
    """Rename onto a target that is not there; tells whether it was not."""
    if target.exists():
        return False
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _locked_folder(parent: Path, prefix: str, locks: ExitStack) -> Path:
    """A new folder, locked until `locks` closes or the process ends, if the file system has such locks.

    Its name ends with kernel, host, process and random signs.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{_kernel()}.{socket.gethostname()}.{os.getpid()}.", dir=parent))
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            locks.callback(os.close, handle)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH)
            if folder.is_dir():  # until it was locked another process could try_lock it for a killed one's
                return folder


def _remove_unless_held(folder: Path, prefix: str) -> None:
    """Remove a folder unless a process that runs holds it; one whose lock may not reach here, when old.

    Locks reach all containers of one kernel, numbers of processes those of one host.
    """
    owner, _, process = folder.name.removeprefix(prefix).rpartition(".")[0].rpartition(".")
    kernel, _, host = owner.partition(".")
    with suppress(FileNotFoundError), ExitStack() as stack:
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = kernel != _kernel() and host != socket.gethostname()
        except BlockingIOError:
            return
        except OSError:  # a file system without such locks
            is_held = host != socket.gethostname() or _runs(process)
        changed = max(map(last_used, (folder, *folder.rglob("*")))) if is_held else 0
        if changed / 1e9 < time.time() - _OLD:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _kernel() -> str:
    """What is the same in all processes of this start of the machine's kernel, and nowhere else."""
    started = Path("/proc/sys/kernel/random/boot_id")
    return started.read_text().strip()[:8] if started.is_file() else socket.gethostname().replace(".", "-")


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError, ValueError):
        return False
    return True


@contextmanager
def file_lock(lock: Path, busy: str = "") -> Iterator[None]:
    """Hold a lock file, which stays, where the file system has such locks; it ends with the process, not its children.

    Waits while another process holds it, or raises TransientError with the text `busy`.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise TransientError(busy) from None
        except OSError:  # a file system without such locks
            pass
        yield


_locks: dict[Path, ExitStack] = {}


def try_lock(lock: Path) -> bool:
    """Hold a lock file as `file_lock` does, until `unlock` or the end of this process; False if another one has it."""
    stack = ExitStack()
    if lock not in _locks:
        try:
            stack.enter_context(file_lock(lock, "held"))
        except TransientError:
            return False
        _locks[lock] = stack
    return True


def unlock(lock: Path) -> None:
    """Hold a lock file no more, if `try_lock` took it."""
    if stack := _locks.pop(lock, None):
        stack.close()


@contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """Yield a path beside `target`; rename it onto `target` when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".staging.{target.name}.{os.getpid()}.{secrets.token_hex(4)}")  # pids of two containers
    try:
        yield staging
        staging.replace(target)
    finally:
        staging.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that equal content is equal bytes."""
    with staged_file(path) as staging:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        staging.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file; UserError when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run `dvc repro` (or `make demo`) to make it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); delete it and run the stage that writes it again") from None


def sha256_text(text: str) -> str:
    """Hex sha256 of the UTF-8 text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def folder_digest(folder: Path, *, hidden: bool = True) -> str:
    """`files_digest` of all files below a folder; `hidden`: of hidden ones too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not hidden:
        files = [path for path in files if not any(part[0] == "." for part in path.relative_to(folder).parts)]
    return files_digest(folder, files)


def files_digest(folder: Path, files: Iterable[Path]) -> str:
    """Hex sha256 over the names and contents of files below a folder, in their order."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(folder).as_posix()}\n{sha256_file(path)}\n".encode())
    return total.hexdigest()


def last_used(path: Path) -> int:
    """When a file or folder was touched last, in nanoseconds; 0 where another process has removed it meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def read_columns(path: Path, *names: str, filters: Any = None) -> "pa.Table":
    """Columns of a Parquet file, with its metadata; `filters` as pyarrow takes them. UserError if one is missing."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` (or `make run RECIPE=...`) to make it")
    if missing := [name for name in names if name not in pq.read_schema(path).names]:
        raise UserError(f"{path}: has no column {', '.join(missing)}; delete it and run the stage that writes it again")
    return pq.read_table(path, columns=list(names), filters=filters)
