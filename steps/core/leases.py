"""Folders below SLIMTOWER_CACHE that one run uses at a time, such as its checkpoints: others wait for it."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slimtower.common.files import try_lock, unlock

LOOK_SECONDS = 1.0  # between two looks whether the other run has ended


def acquire(folder: Path, message: str, lock: Callable[[Path], bool] = try_lock) -> None:
    """Let no other run use the folder until `release_and_delete` or the end of this process.

    While another run uses it, wait, and print `message` on stderr unless it is empty. `lock` takes the lock and
    returns True, or returns False if another run has it.
    """
    while not lock(_lock_path(folder)):
        if message:
            print(message, file=sys.stderr)
        message = ""
        time.sleep(LOOK_SECONDS)
    shutil.rmtree(_removal_path(folder), ignore_errors=True)


def release_and_delete(folder: Path) -> None:
    """Remove the folder, and let other runs go on with theirs; a kill leaves it whole, or no such folder."""
    removed = _removal_path(folder)
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(OSError):  # it was never made, or may not be removed
        folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
    unlock(_lock_path(folder))


def _removal_path(folder: Path) -> Path:
    return folder.with_name(f".gone.{folder.name}")


def _lock_path(folder: Path) -> Path:
    return folder.parent.with_name("locks") / folder.name
