"""What kind of machine a measurement was made on, without its name."""

import os
import platform
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """Cores, memory in GiB, processor family, native bf16, GPU name or none, and versions that matter."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "processor": names[0] if names else platform.machine(),
        "native_bf16": bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
