"""How commands end: without a traceback when nobody reads them, with advice that can be typed, with their pools."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from slimtower.common.errors import EXIT_BUG, EXIT_UNREAD, OutOfMemory, UserError, exhausted, guarded

PRINTING = """
from slimtower.common.errors import guarded
def command():
    for line in range({lines}):
        print("line", line)
guarded(command)
"""
SENDING = """
import socket
from slimtower.common.errors import guarded
def command():
    here, there = socket.socketpair()
    there.close()
    here.sendall(b"asked")
guarded(command)
"""


def unread(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code with an output whose reader has gone before the first word."""
    closed = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    closed.wait()
    return subprocess.run([sys.executable, "-c", code], stdout=closed.stdin, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("lines", [1, 100_000], ids=["what waits in the buffer", "more than the buffer"])
def test_output_that_nobody_reads_ends_a_command_without_a_traceback(lines: int) -> None:
    done = unread(PRINTING.format(lines=lines))
    assert (done.returncode, done.stderr) == (EXIT_UNREAD, "")


def test_a_connection_that_broke_is_not_taken_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", SENDING], capture_output=True, text=True)
    assert done.returncode == EXIT_BUG
    assert "BrokenPipeError" in done.stderr


def test_a_locale_that_lacks_a_sign_ends_no_command() -> None:
    code = "from slimtower.common.errors import guarded\nguarded(lambda: print('a title \u2026 \u2013'))"
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a title ? ?\n", "")


@pytest.mark.parametrize(
    ("folder", "environment", "typed"),
    [(".", ".venv", ".venv/bin/dvc"), ("runs/ubi", ".venv", "../../.venv/bin/dvc"), (".", "elsewhere", "dvc")],
)
def test_dvc_is_named_by_its_path(
    folder: str, environment: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / environment / "bin").mkdir(parents=True)
    (tmp_path / environment / "bin/dvc").touch()
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / folder)

    # DVC is in the project's environment, not on the PATH
    def command() -> None:
        raise UserError("data/embed: of another teacher; run `dvc repro embed` again")

    with pytest.raises(SystemExit):
        guarded(command)
    assert f"run `{typed} repro embed` again" in capsys.readouterr().err


def test_memory_that_torch_does_not_get_on_a_cpu_is_exhausted_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15, dtype=torch.uint8)
    assert isinstance(exhausted(raised.value), OutOfMemory)


POOL = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from slimtower.common.errors import end_with_parent
if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), end_with_parent) as pool:
        waiting = [pool.submit(time.sleep, seconds) for seconds in (0, 0, 60, 60)]
        waiting[0].result(), waiting[1].result()
        print("both are there", flush=True)
"""


@pytest.mark.medium
@pytest.mark.faults("files")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_process_leaves_none_of_its_pool() -> None:
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "both are there\n"
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
