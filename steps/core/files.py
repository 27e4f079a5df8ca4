"""Files that appear whole or not at all, and their digests."""

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steps.core.errors import UserError


def cache_root() -> Path:
    """Absolute SLIMTOWER_CACHE, or `.cache/slimtower` here; UserError for a URL."""
    given = os.environ.get("SLIMTOWER_CACHE") or ".cache/slimtower"
    if "://" in given:
        raise UserError(f"SLIMTOWER_CACHE is {given!r}; give a folder (a mounted volume serves several machines)")
    return Path(given).resolve()


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a fresh folder beside `target`; rename it onto `target` when the block succeeds.

    What a killed run left of the same target is removed first. UserError for the working folder and those above it.
    """
    if Path.cwd().is_relative_to(target.resolve()):
        raise UserError(f"{target}: is the working folder or holds it, so it is not replaced; name a folder below")
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".staging.{target.name}."  # .dvcignore keeps these out of folders that stages depend on
    for stale in target.parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    staging.chmod(0o755)  # mkdtemp makes it private; outputs are read by other users and containers
    try:
        yield staging
        if target.exists():  # moved aside first: a folder that is being removed must never be taken for a whole one
            old = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
            target.rename(old / "old")
            staging.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """Yield a path beside `target`; rename it onto `target` when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".staging.{target.name}.{os.getpid()}")
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


def folder_digest(folder: Path) -> str:
    """Hex sha256 over the names and contents of all files below a folder."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(folder).as_posix()}\n{sha256_file(path)}\n".encode())
    return total.hexdigest()


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
