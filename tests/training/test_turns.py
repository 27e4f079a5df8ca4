"""Runs of one training that share a cache take turns."""

import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

HOLDS = """
import sys
from pathlib import Path
from steps.training.turns import forget, hold

hold(Path(sys.argv[1]), "teach")
hold(Path(sys.argv[1]), "held twice by one process")
print("held", flush=True)
sys.stdin.readline()
forget(Path(sys.argv[1]))
print("forgotten", flush=True)
sys.stdin.read()
"""


@pytest.mark.medium
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
