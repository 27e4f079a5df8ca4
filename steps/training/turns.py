"""Runs of one training that share a SLIMTOWER_CACHE take turns with its checkpoints."""

import shutil
import sys
import time
from pathlib import Path

from steps.core.files import let_go, take
from steps.training.distributed import of_first, rank

LOOK_SECONDS = 1.0  # between two looks whether the other run has ended


def hold(checkpoints: Path, stage: str) -> None:
    """Let no other run use the folder until `forget` or the end of this process.

    Every process of a run waits while another run does, and a line of the stage's says so.
    """
    told = False
    while not of_first([float(rank() == 0 and take(_lock(checkpoints)))])[0]:  # no process waits in it for long
        if rank() == 0 and not told:
            print(f"{stage}: waits for another run of this training", file=sys.stderr)
        told = True
        time.sleep(LOOK_SECONDS)


def forget(checkpoints: Path) -> None:
    """Remove the folder, and let other runs of this training go on."""
    shutil.rmtree(checkpoints, ignore_errors=True)
    let_go(_lock(checkpoints))


def _lock(checkpoints: Path) -> Path:
    return checkpoints.parent.with_name("locks") / checkpoints.name
