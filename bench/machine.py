"""What kind of machine a measurement was made on, without its name, and the record that says so."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slimtower.common.files import write_json
from steps.encoders.precision import resolve_precision
from steps.evaluate.latency import processor
from steps.tracking.run_ids import git_commit


def machine() -> dict[str, object]:
    """Cores, memory in GiB, processor family, what `precision: auto` means there, GPU name or none, and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "processor": processor(),
        "precision_auto": resolve_precision("auto"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_record(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures with the machine and the commit that they were measured on, and say where."""
    write_json(path, {"machine": machine(), "git_commit": git_commit(), **figures})
    print(f"wrote {path}")
