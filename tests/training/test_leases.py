"""Runs of one training that share a cache take turns."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
import torch

from slimtower.common.errors import TransientError
from slimtower.common.files import file_lock, try_lock, unlock
from steps.core.leases import release_and_delete
from steps.distill.checkpoints import Checkpoints, Done
from steps.training.checkpoint_files import acquire

HOLDS = """
import sys
from pathlib import Path
from steps.core.leases import release_and_delete
from steps.training.checkpoint_files import acquire

acquire(Path(sys.argv[1]), "teach")
acquire(Path(sys.argv[1]), "held twice by one process")
print("held", flush=True)
sys.stdin.readline()
release_and_delete(Path(sys.argv[1]))
print("forgotten", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.faults("two runs at once")
def test_a_run_waits_until_the_one_before_it_forgets_its_checkpoints_or_ends(tmp_path: Path) -> None:
    folder = tmp_path / "trainings/key"
    folder.mkdir(parents=True)

    def started() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", HOLDS, str(folder)]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def says(stream: TextIO | None) -> str:
        assert stream
        return stream.readline()

    first = started()
    assert says(first.stdout) == "held\n"
    second = started()
    assert says(second.stderr) == "teach: waits for another run of this training\n"
    assert second.poll() is None
    first.kill()  # not even told
    assert says(second.stdout) == "held\n"
    third = started()
    assert says(third.stderr).startswith("teach: waits")
    assert folder.is_dir() and second.stdin
    second.stdin.write("\n")
    second.stdin.flush()
    assert (says(second.stdout), says(third.stdout)) == ("forgotten\n", "held\n")
    assert not folder.exists()
    for process in (first, second, third):
        process.communicate("", timeout=60)
    assert (second.returncode, third.returncode) == (0, 0)


TOGETHER = """
import sys
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from steps.training.checkpoint_files import acquire

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
acquire(Path(sys.argv[1]), "teach")
print("held", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.faults("two runs at once")
def test_processes_of_one_training_wait_longer_than_they_wait_for_each_other(tmp_path: Path) -> None:
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    assert try_lock(tmp_path / "locks/key")
    process = subprocess.Popen(
        [*words, str(tmp_path / "trainings/key")], env=environment, stdout=pipe, stderr=pipe, text=True
    )
    assert process.stderr and any("teach: waits for another run" in line for line in process.stderr)
    time.sleep(8)
    unlock(tmp_path / "locks/key")
    assert process.communicate(timeout=60)[0].count("held") == 2
    assert process.returncode == 0


def test_a_kill_while_checkpoints_are_removed_leaves_no_half_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trainings/key"
    (folder / "checkpoint-2").mkdir(parents=True)
    for name in ("weights", "state"):
        (folder / "checkpoint-2" / name).write_text(name)
    acquire(folder, "teach")

    def killed(path: Path, **_: object) -> None:
        if files := sorted(path.rglob("*/*")):
            files[0].unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        release_and_delete(folder)
    assert not folder.exists()
    acquire(folder, "teach")
    assert not list(folder.parent.iterdir())
    release_and_delete(folder)


def test_a_distillation_has_its_checkpoints_alone_until_it_removes_them(tmp_path: Path) -> None:
    checkpoints, lock = Checkpoints(tmp_path / "distill/key"), tmp_path / "locks/key"
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters())
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    def free() -> bool:
        with suppress(TransientError), file_lock(lock, "held"):
            return True
        return False

    checkpoints.load({"student": module}, optimizer, rate, Done())
    assert not free()
    checkpoints.save({"student": module}, optimizer, rate, Done())
    checkpoints.remove()
    assert free() and not checkpoints.folder.exists()
