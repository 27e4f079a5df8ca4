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


def test_without_files_of_the_kernel_it_is_all_the_memory(tmp_path: Path) -> None:
    assert memory_free(tmp_path) == 64


def test_what_is_available_counts_and_not_what_is_free(tmp_path: Path) -> None:
    assert memory_free(write(tmp_path, MEMINFO)) == 20


@pytest.mark.parametrize(
    ("limit", "free"), [(8 * GIB, 3), ("max", 20), (4 * GIB, 0)], ids=["below", "none", "passed already"]
)
def test_a_limit_of_cgroup_2_counts_less_what_is_used(tmp_path: Path, limit: object, free: float) -> None:
    group = {"sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/memory.current": 5 * GIB}
    assert memory_free(write(tmp_path, MEMINFO | group)) == free


def test_files_that_the_group_has_read_are_not_lost(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory.max": 8 * GIB,
        "sys/fs/cgroup/memory.current": 8 * GIB,
        "sys/fs/cgroup/memory.stat": f"anon {2 * GIB}\nfile {6 * GIB}\ninactive_file {5 * GIB}",
    }
    assert memory_free(write(tmp_path, MEMINFO | group)) == 5


def test_a_group_above_may_have_the_limit(tmp_path: Path) -> None:
    own = "sys/fs/cgroup/batch/job/step"
    files = {
        "proc/self/cgroup": "0::/batch/job/step",
        f"{own}/memory.max": "max",
        f"{own}/memory.current": GIB,
        "sys/fs/cgroup/batch/memory.max": 6 * GIB,
        "sys/fs/cgroup/batch/memory.current": 2 * GIB,
    }
    assert memory_free(write(tmp_path, MEMINFO | files)) == 4


def test_cgroup_1_counts_and_its_number_for_no_limit_does_not(tmp_path: Path) -> None:
    """The group's own folder is not there: the container sees it as the top one."""
    top = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/c0ffee\n4:memory:/docker/c0ffee\n0::/",
        f"{top}/memory.limit_in_bytes": 9223372036854771712,
        f"{top}/memory.usage_in_bytes": 30 * GIB,
    }
    assert memory_free(write(tmp_path, MEMINFO | files)) == 20
    files |= {f"{top}/memory.limit_in_bytes": 32 * GIB, f"{top}/memory.stat": f"total_inactive_file {GIB}"}
    assert memory_free(write(tmp_path, files)) == 3


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


def test_this_very_machine_has_both() -> None:
    assert memory_free() > 0
    assert cores() >= 1
