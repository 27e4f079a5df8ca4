"""Runs of one training that share a SLIMTOWER_CACHE take turns with its checkpoints, all processes of each together."""

from pathlib import Path

from slimtower.common.files import take
from steps.core import turns
from steps.training.distributed import broadcast, rank


def hold(checkpoints: Path, stage: str) -> None:
    """`turns.hold` for every process of a training: each waits while another run has the folder; one line says so."""
    turns.hold(checkpoints, "" if rank() else f"{stage}: waits for another run of this training", _take_lock)


def _take_lock(lock: Path) -> bool:
    """Whether the first process took it."""
    return bool(broadcast([float(rank() == 0 and take(lock))])[0])  # no process waits in it for long
