"""What a measurement was made on."""

import platform
from pathlib import Path


def processor() -> str:
    """Name of the processor that the timings were taken on."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
