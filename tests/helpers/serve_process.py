"""The service as a process of its own, on a free port."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(folder: Path, *options: str, ready: bool = True, **environment: str) -> Iterator[tuple[str, Any]]:
    """Start the service in `folder`; yields its URL and its process once it answers, and asks it to stop."""
    port = free_port()
    command = [sys.executable, "-m", "slimtower", "serve", f"--port={port}", "--poll=0.3", "--rate=0", *options]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: status(f"{url}/health") in ((200,) if ready else (200, 503)), process)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


def until(holds: Any, process: Any = None, seconds: float = 90) -> None:
    """Wait until something holds; AssertionError where it does not, or the process ended."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, "the service ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def status(url: str) -> int:
    """Of a GET; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def get(url: str) -> Any:
    """The JSON of a GET."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)
