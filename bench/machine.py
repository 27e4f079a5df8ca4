"""What kind of machine a measurement was made on, without its name."""

import os
import platform

import torch

from steps.encoders.precision import resolve_precision
from steps.evaluate.latency import processor


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
