"""How much of the machine a run may take: what the kernel has, and what the container's or the group's limit leaves."""

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

GIB = 2**30


def memory_free(root: Path = Path("/")) -> float:
    """GiB of memory that may still be taken, by the kernel, `ulimit -v` and the limits of this process's groups."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        limits.append(addresses)
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        limits.append(int(lines.get("MemAvailable", lines["MemTotal"]).split()[0]) * 1024)
    for group in _groups(root, "memory"):
        limit = _first(group, "memory.max", "memory.limit_in_bytes")
        used = _first(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            limits.append(max(0, limit - max(0, used - _cached(group))))
    return min(limits) / GIB


def cores(root: Path = Path("/")) -> int:
    """How many cores the threads of this process may keep busy, at least 1.

    A container that is given a share of the time (`docker run --cpus`, a limit of Kubernetes) sees all cores and is
    stopped over and over when it starts a thread for each.
    """
    available = float(cores_seen())
    for group in _groups(root, "cpu"):
        quota = _first(group, "cpu.max", "cpu.cfs_quota_us")
        period = _first(group, "cpu.cfs_period_us", "cpu.max", word=-1)
        if quota and quota > 0 and period:  # -1: no limit
            available = min(available, quota / period)
    return max(1, math.ceil(available))


def cores_seen() -> int:
    """How many cores this process may run on, a share of their time or not."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders with limits of a controller, of cgroup 2 and 1: this process's group, and those above it."""
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.is_file() else ["0::/"]:
        _, names, path = line.split(":", 2)
        if not names or controller in names.split(","):
            top = root / "sys/fs/cgroup" / (controller if names else "")
            group = top / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _first(group: Path, *names: str, word: int = 0) -> int | None:
    """A number in the first of the files that is there; None without one, or where it says `max`."""
    for name in names:
        try:
            return int((group / name).read_text().split()[word])
        except (OSError, ValueError, IndexError):
            continue
    return None


def _cached(group: Path) -> int:
    """Bytes of files that the group has read and the kernel gives up when memory is short."""
    try:
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        values = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    except (OSError, ValueError):
        return 0
    return values.get("total_inactive_file", values.get("inactive_file", 0))
