"""Child processes of a task: asked for an answer, or run with their output passed on and their last words kept."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slimtower.common.masking import redacted

_LAST_WORDS = 16384  # bytes
_POLL_S = 0.5  # seconds between looks whether a silent child has ended
_GRACE = 10  # seconds between asking to stop and killing


class Ended(NamedTuple):
    """How a child ended: exit code, stdout if it was captured, the end of stderr."""

    code: int
    out: str
    stderr: str

    @property
    def exit_code(self) -> int:
        """Its code as an exit code: 128 and the signal, where one ended it."""
        return self.code if self.code >= 0 else 128 - self.code

    def line(self) -> str:
        """Its last complaint."""
        return (self.complaints() or [f"ended with code {self.code}"])[-1][:500]

    def complaints(self) -> list[str]:
        """The lines of stderr with ERROR or fatal, else all of them; without secrets."""
        lines = [redacted(" ".join(line.split())) for line in self.stderr.splitlines() if line.strip()]
        return [line for line in lines if line.startswith(("ERROR", "fatal:", "slimtower:"))] or lines


def ask(words: Sequence[str], folder: Path | str, environment: dict[str, str]) -> Ended:
    """Run a command and return what it printed."""
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    return Ended(done.returncode, done.stdout, redacted(done.stderr)[-_LAST_WORDS:])


def stream(words: Sequence[str], folder: Path, environment: dict[str, str]) -> Ended:
    """Run a command in a process group of its own, of which nothing is left when this returns or is stopped."""
    tail = b""
    process = subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    try:
        for chunk in chunks(process, process.stderr.fileno()):
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()
            tail = (tail + chunk)[-2 * _LAST_WORDS :]  # cut again when it is masked: of half a URL nothing can be said
        return Ended(process.wait(), "", redacted(tail.decode(errors="replace"))[-_LAST_WORDS:])
    finally:
        stop(process)
        process.stderr.close()


def chunks(process: subprocess.Popen[bytes], pipe: int) -> Iterator[bytes]:
    """What a child writes until it ends; a grandchild that outlives it may keep the pipe open."""
    while True:
        ended = process.poll() is not None  # asked first: what it wrote before it ended is there when it has
        readable, _, _ = select.select([pipe], [], [], 0 if ended else _POLL_S)
        if readable:
            if not (chunk := os.read(pipe, 65536)):
                return
            yield chunk
        elif ended:
            return


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop what is left of a process group, politely where its first process still runs."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
