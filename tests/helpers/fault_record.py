"""Where tests of faults write how much they did, when `make test-faults` asks for all of it."""

import os
import time
from pathlib import Path
from typing import Any

from steps.core.files import read_json, write_json

FAULTS = int(os.environ.get("FAULTS") or 0)  # how often runs are killed; 0: a few times, and nothing is written
RESULTS = Path(__file__).parents[2] / "bench/results/faults.json"


def record(name: str, started: float, **counts: Any) -> None:
    """Write what a test did since `started` (of time.monotonic()) under its name."""
    if FAULTS:
        from bench.machine import machine

        known = read_json(RESULTS)["tests"] if RESULTS.is_file() else {}
        done = {**counts, "seconds": round(time.monotonic() - started, 1)}
        write_json(RESULTS, {"machine": machine(), "tests": known | {name: done}})
