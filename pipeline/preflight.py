"""What can be known before a run: whether this machine can carry it, and about how long it will take."""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipeline.limits import GIB, cores, memory_free
from slimtower.common.errors import UserError
from slimtower.common.files import cache_root
from slimtower.registry.client import tracking_uri

DISK = 1.0  # GiB that the demo writes at least, most of it models; 2.5 with all that is tracked and cached
MEMORY = 3.0  # GiB that the largest stage of the demo takes


@dataclass(frozen=True)
class Machine:
    """What a run has: threads, memory and disk in GiB, `bf16` or `fp32`, and the processor's widest instructions."""

    threads: int
    memory: float
    disk: float
    precision: str
    instructions: str

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return (
            f"{threads}, {self.precision} ({self.instructions}), {self.memory:.1f} GiB of memory and"
            f" {self.disk:.0f} GiB of disk free"
        )


def check_folders(root: Path) -> None:
    """UserError if the project's folder or the cache cannot be written or used, or the disk is full."""
    _, is_file, database = tracking_uri().rpartition("sqlite:///")
    folder = Path(database).parent
    if is_file and folder.is_dir() and (misread := re.search(r"%[0-9A-Fa-f]{2}|\?", str(folder))):
        raise UserError(
            f"{folder}: {misread[0]!r} in its path means something else in the address of MLflow's database; rename the"
            " folder"
        )
    folders = [_nearest(folder) for folder in (root, cache_root())]
    for folder in folders:
        _check_writable(folder)
    if (disk := _disk_free(root)) < DISK:
        raise UserError(
            f"{root}: only {disk:.1f} GiB of disk are free, and the smallest run writes {DISK:g} GiB; free some, or set"
            " SLIMTOWER_CACHE to a folder on another disk"
        )


def examine(root: Path) -> Machine:
    """Look at this machine; what is tight, or set in a way that costs much time, is told by `warnings`."""
    import torch

    from steps.encoders.precision import resolve_precision

    instructions = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else torch.backends.cpu.get_cpu_capability()
    )
    return Machine(torch.get_num_threads(), memory_free(), _disk_free(root), resolve_precision("auto"), instructions)


def warnings(machine: Machine) -> list[str]:
    """What may go wrong or take long, and what to do about it."""
    messages = []
    if machine.memory < MEMORY:
        messages.append(
            f"only {machine.memory:.1f} GiB of memory are free, and the demo takes up to {MEMORY:g}: a stage may be"
            " killed; close other programs, or set embed.batch_size and distill.student.*.batch_size lower"
        )
    if (setting := os.environ.get("OMP_NUM_THREADS")) and machine.threads != (available := cores()):
        slow = "the others stay idle" if machine.threads < available else "threads wait for each other"
        messages.append(
            f"OMP_NUM_THREADS is {setting}, but this process may use {available}"
            f" {'core' if available == 1 else 'cores'}: {slow}"
        )
    return messages


def _disk_free(root: Path) -> float:
    """GiB that are free for the project and for the cache, whichever has less."""
    return min(shutil.disk_usage(_nearest(folder)).free for folder in (root, cache_root())) / GIB


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(candidate for candidate in (folder, *folder.parents) if candidate.exists())


def _check_writable(folder: Path) -> None:
    """UserError unless a file can be made in the folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}); run in a folder of your own, or set SLIMTOWER_CACHE to"
            " one"
        ) from None
