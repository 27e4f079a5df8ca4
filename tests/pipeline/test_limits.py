"""How much of the machine a run may take: the kernel's figure, cgroup 2 and 1, and `ulimit -v`."""

import resource
from pathlib import Path

import pytest

from pipeline import limits
from pipeline.limits import GIB, cores, memory_free


@pytest.fixture(autouse=True)
def a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 GiB, 16 cores, no `ulimit`."""
    monkeypatch.setattr(limits.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}.get)
    monkeypatch.setattr(limits, "cores_seen", lambda: 16)
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemFree: {2**20} kB\nMemAvailable: {20 * 2**20} kB"}
GROUP = {"memory.current": 5 * GIB, "memory.max": 8 * GIB}
OLD = {"memory/memory.limit_in_bytes": 9223372036854771712, "memory/memory.usage_in_bytes": 30 * GIB}
LIMITED = {"memory/memory.limit_in_bytes": 32 * GIB, "memory/memory.stat": f"total_inactive_file {GIB}"}
READ = f"anon {2 * GIB}\nfile {6 * GIB}\ninactive_file {5 * GIB}"
INNER = {"batch/job/step/memory.max": "max", "batch/job/step/memory.current": GIB}
ABOVE = {"batch/memory.max": 6 * GIB, "batch/memory.current": 2 * GIB}
DOCKER = "5:cpu,cpuacct:/docker/c0ffee\n4:memory:/docker/c0ffee\n0::/"  # the container sees its group as the top one


@pytest.mark.parametrize(
    ("files", "cgroup", "free"),
    [
        ({}, "0::/", 20),  # what is available, not what is free
        (GROUP, "0::/", 3),
        (GROUP | {"memory.max": "max"}, "0::/", 20),
        (GROUP | {"memory.max": 4 * GIB}, "0::/", 0),  # passed already
        (GROUP | {"memory.current": 8 * GIB, "memory.stat": READ}, "0::/", 5),  # files that it has read are not lost
        (INNER | ABOVE, "0::/batch/job/step", 4),  # a group above may have the limit
        (OLD, DOCKER, 20),  # cgroup 1, and its number for no limit
        (OLD | LIMITED, DOCKER, 3),
    ],
)
def test_memory_is_what_kernel_and_groups_leave(
    tmp_path: Path, files: dict[str, object], cgroup: str, free: float
) -> None:
    assert memory_free(tmp_path) == 64, "all of it, without files of the kernel"
    written = {f"sys/fs/cgroup/{name}": value for name, value in files.items()}
    assert memory_free(write(tmp_path, MEMINFO | {"proc/self/cgroup": cgroup} | written)) == free


def test_ulimit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: (8 * GIB, 8 * GIB))
    assert memory_free(write(tmp_path, MEMINFO)) == 8


@pytest.mark.parametrize(("quota", "count"), [("max", 16), (400000, 4), (150000, 2), (10000, 1), (9900000, 16)])
def test_a_share_of_the_time_is_that_many_cores(tmp_path: Path, quota: object, count: int) -> None:
    assert cores(tmp_path) == 16
    assert cores(write(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})) == count


@pytest.mark.parametrize(("quota", "count"), [(-1, 16), (200000, 2)])
def test_a_share_of_the_time_in_cgroup_1(tmp_path: Path, quota: int, count: int) -> None:
    top = "sys/fs/cgroup/cpu"
    files = {
        "proc/self/cgroup": "5:cpu:/docker/c0ffee\n4:memory:/docker/c0ffee",
        f"{top}/cpu.cfs_quota_us": quota,
        f"{top}/cpu.cfs_period_us": 100000,
    }
    assert cores(write(tmp_path, files)) == count
