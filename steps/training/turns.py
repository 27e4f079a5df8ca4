"""Runs of one training that share a SLIMTOWER_CACHE take turns with its checkpoints, and others with what they keep."""

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from steps.core.files import let_go, take
from steps.training.distributed import of_first, rank

LOOK_SECONDS = 1.0  # between two looks whether the other run has ended


def hold(checkpoints: Path, stage: str, other: str = "of this training") -> None:
    """Let no other run use the folder until `forget` or the end of this process.

    Every process of a run waits while another run does, and a line of the stage's says so: which one, in words.
    """
    told = False
    while not of_first([float(rank() == 0 and take(_lock(checkpoints)))])[0]:  # no process waits in it for long
        if rank() == 0 and not told:
            print(f"{stage}: waits for another run {other}", file=sys.stderr)
        told = True
        time.sleep(LOOK_SECONDS)
    if rank() == 0:
        shutil.rmtree(_gone(checkpoints), ignore_errors=True)


def forget(checkpoints: Path) -> None:
    """Remove the folder, and let other runs of this training go on; a kill leaves it whole, or no such folder."""
    gone = _gone(checkpoints)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        checkpoints.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    let_go(_lock(checkpoints))


def _gone(checkpoints: Path) -> Path:
    """The folder's name while it is removed."""
    return checkpoints.with_name(f".gone.{checkpoints.name}")


def _lock(checkpoints: Path) -> Path:
    return checkpoints.parent.with_name("locks") / checkpoints.name
