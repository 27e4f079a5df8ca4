"""A program that is killed once it has got so far."""

import os
import subprocess
import sys
import time
from collections.abc import Callable


def run_until(is_far: Callable[[], bool], program: str, *arguments: object) -> None:
    """Run Python's text with these arguments, and kill it when it is as far, which it must be."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([".", "tests/helpers"])}
    process = subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environment)
    while not is_far() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert is_far()
