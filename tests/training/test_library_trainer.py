"""Checkpoints of the library's trainers appear whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from steps.training.library_trainer import last_step, publish_checkpoint


def test_the_newest_checkpoint_is_taken_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    for name in ("checkpoint-2", "checkpoint-10", "staging/checkpoint-12"):
        (tmp_path / name).mkdir(parents=True)
    assert last_step(tmp_path) == 10
    publish_checkpoint(tmp_path, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-12"]
    assert last_step(tmp_path / "nothing") == 0


HOLDS = """
import sys
from pathlib import Path
from steps.training.library_trainer import hold

hold(Path(sys.argv[1]), "waits")
hold(Path(sys.argv[1]), "held twice by one process")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.medium
def test_a_second_run_of_one_training_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    def started() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", HOLDS, str(tmp_path / "rank/.key.lock")]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    first = started()
    assert first.stdout and first.stdout.readline() == "held\n"
    second = started()
    assert second.stderr and second.stderr.readline() == "waits\n"
    assert second.poll() is None
    first.kill()  # not even told
    assert second.stdout and second.stdout.readline() == "held\n"
    second.communicate("", timeout=60)
    first.communicate(timeout=60)
    assert second.returncode == 0
