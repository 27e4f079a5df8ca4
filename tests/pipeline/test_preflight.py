"""What is said of a machine before a run, and what stops it there."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pipeline import preflight
from pipeline.limits import GIB
from pipeline.preflight import Machine, check_folders, examine, warnings
from slimtower.common.errors import UserError


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_this_machine_is_looked_at_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", "fp32")
    machine = examine(tmp_path)
    assert machine.threads == torch.get_num_threads()
    assert machine.precision == "fp32"
    assert machine.disk == pytest.approx(shutil.disk_usage(tmp_path).free / GIB, rel=0.1)
    assert machine.instructions
    assert str(Machine(1, 7.26, 3.4, "bf16", "AVX512")).startswith("1 thread, bf16 (AVX512), 7.3 GiB of memory and 3 ")
    monkeypatch.setenv("SLIMTOWER_PRECISION", "fp16")
    with pytest.raises(UserError, match="SLIMTOWER_PRECISION is 'fp16'"):
        examine(tmp_path)


@pytest.mark.parametrize("full", ["project", "slimtower-cache"])
def test_a_full_disk_stops_the_run(full: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (own_cache, tmp_path / "project"):
        folder.mkdir()
    monkeypatch.setattr(
        preflight.shutil, "disk_usage", lambda folder: Usage(0, 0, GIB // 5 if folder.name == full else 50 * GIB)
    )
    with pytest.raises(UserError, match=r"only 0\.2 GiB of disk are free, and the smallest run writes 1 GiB; free"):
        check_folders(tmp_path / "project")


@pytest.mark.parametrize(("name", "is_fine"), [("My%20Project", False), ("what? now", False), ("50 % off", True)])
def test_a_folder_whose_path_means_something_else_in_an_address_stops_the_run(
    name: str, is_fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    check_folders(tmp_path / name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    if is_fine:
        check_folders(tmp_path / name)
        return
    with pytest.raises(UserError, match="rename the folder"):
        check_folders(tmp_path / name)


def test_a_folder_that_cannot_be_written_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(preflight.tempfile, "TemporaryFile", refuse)
        with pytest.raises(
            UserError, match=r"cannot be written \(Read-only file system\); run in a folder of your own"
        ):
            check_folders(tmp_path)
    monkeypatch.setenv("SLIMTOWER_CACHE", "/proc/nowhere/cache")
    with pytest.raises(UserError, match=r"^/proc: cannot be written \(.+\); .*set SLIMTOWER_CACHE"):
        check_folders(tmp_path)


@pytest.mark.parametrize(
    ("setting", "threads", "cores", "memory", "warned"),
    [
        ("", 4, 8, 16.0, ""),  # torch's own choice where two cores share one unit
        ("", 4, 8, 1.23, "only 1.2 GiB of memory are free, and the demo takes up to 3"),
        ("1", 1, 4, 16.0, "OMP_NUM_THREADS is 1, but this process may use 4 cores: the others stay idle"),
        ("4", 4, 2, 16.0, "OMP_NUM_THREADS is 4, but this process may use 2 cores: threads wait for each other"),
        ("4", 4, 1, 16.0, "OMP_NUM_THREADS is 4, but this process may use 1 core: threads wait for each other"),
        ("2", 2, 2, 16.0, ""),
    ],
)
def test_little_memory_and_threads_that_do_not_fit_the_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, setting: str, threads: int, cores: int, memory: float, warned: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setattr(preflight, "cores", lambda: cores)
    messages = warnings(Machine(threads, memory, 100.0, "fp32", "AVX2"))
    assert len(messages) == bool(warned) and all(line.startswith(warned) for line in messages)


@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        ("pipeline.__main__, pipeline.prepare", {"mlflow", "pandas", "torch", "transformers"}),
        ("pipeline.params", {"mlflow", "sentence_transformers", "transformers"}),
        ("pipeline.task.__main__", {"torch"}),  # a task imports it in its stage alone
    ],
)
def test_what_precedes_a_run_imports_nothing_slow(modules: str, slow: set[str]) -> None:
    """A run that finds nothing to do ends after it; and the threads are set before torch is imported."""
    script = f"import sys, {modules}; print(sorted({slow} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
