"""Folders below SLIMTOWER_CACHE that one run uses at a time, such as its checkpoints: others wait for it."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slimtower.common.files import let_go, take

LOOK_SECONDS = 1.0  # between two looks whether the other run has ended


def hold(folder: Path, said: str, look: Callable[[Path], bool] = take) -> None:
    """Let no other run use the folder until `forget` or the end of this process.

    Waits while another run does, and says so on stderr, where `said` is not empty. `look` takes the lock, or tells that
    another run has it.
    """
    while not look(_lock(folder)):
        if said:
            print(said, file=sys.stderr)
        said = ""
        time.sleep(LOOK_SECONDS)
    shutil.rmtree(_gone(folder), ignore_errors=True)


def forget(folder: Path) -> None:
    """Remove the folder, and let other runs go on with theirs; a kill leaves it whole, or no such folder."""
    gone = _gone(folder)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):  # it was never made, or may not be removed
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    let_go(_lock(folder))


def _gone(folder: Path) -> Path:
    """The folder's name while it is removed."""
    return folder.with_name(f".gone.{folder.name}")


def _lock(folder: Path) -> Path:
    return folder.parent.with_name("locks") / folder.name
