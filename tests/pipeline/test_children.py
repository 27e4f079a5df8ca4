"""Children of a task: their last words are kept, and nothing of them is left."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.task.children import Ended, ask, chunks, stream

BACKGROUND = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(left.pid, file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.medium
def test_what_a_child_leaves_running_neither_delays_its_end_nor_outlives_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    done = stream([sys.executable, "-c", BACKGROUND], tmp_path, dict(os.environ))
    assert time.monotonic() - started < 60
    assert done.code == 3
    pid = int(done.stderr)
    assert capfd.readouterr().err == done.stderr
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_child_says_last_is_read_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes and ends after a look that found nothing, and before the next."""
    child = subprocess.Popen([sys.executable, "-c", "input(); print('gave up')"], stdin=-1, stdout=-1)
    assert child.stdin is not None and child.stdout is not None
    plain = select.select

    def slow(*arguments: Any) -> Any:
        readable = plain(*arguments)
        if child.stdin is not None and not child.stdin.closed:
            child.stdin.close()
            child.wait()
        return readable

    monkeypatch.setattr("pipeline.task.children.select.select", slow)
    monkeypatch.setattr("pipeline.task.children._POLL_S", 0.01)
    child.stdin.write(b"\n")
    assert b"".join(chunks(child, child.stdout.fileno())) == b"gave up\n"
    child.stdout.close()


def test_the_last_complaint_is_found() -> None:
    stderr = "reading\nERROR: failed to push:\n  the remote is  away\nERROR: gave up \nhave a look at the manual\n"
    assert Ended(1, "", stderr).line() == "ERROR: gave up"
    assert Ended(1, "", "one\ntwo  words\n\n").line() == "two words"
    assert Ended(-9, "", "").line() == "ended with code -9"
    assert [Ended(code, "", "").exit_code for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
    done = ask([sys.executable, "-c", "print('x'); raise SystemExit('slimtower: no')"], ".", dict(os.environ))
    assert (done.code, done.out, done.line()) == (1, "x\n", "slimtower: no")
