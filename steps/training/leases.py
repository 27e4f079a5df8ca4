"""Runs of one training that share a SLIMTOWER_CACHE take turns with its checkpoints, all processes of each together."""

from pathlib import Path

from slimtower.common.files import try_lock
from steps.core import leases
from steps.training.distributed import broadcast, rank


def acquire(checkpoints: Path, stage: str) -> None:
    """`leases.acquire` for all processes of a training: each waits for the other run; one line says so."""
    leases.acquire(checkpoints, "" if rank() else f"{stage}: waits for another run of this training", _take_lock)


def _take_lock(lock: Path) -> bool:
    """Whether the first process took it."""
    return bool(broadcast([float(rank() == 0 and try_lock(lock))])[0])  # no process waits in it for long
