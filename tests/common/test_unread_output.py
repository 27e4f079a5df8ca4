"""No output ends a command with a traceback: not when who read it has gone, not when the locale lacks a sign."""

import os
import subprocess
import sys

import pytest

from slimtower.common.errors import EXIT_BUG, EXIT_UNREAD

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
