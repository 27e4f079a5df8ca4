"""What the tests marked `faults` did, counted by what they are of: `make test-faults` asks for all of it.

A marker names the group, as in `pytest.mark.faults("bad input")`; what a test tells `record_property` is summed up.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from steps.core.files import read_json, write_json

FAULTS = int(os.environ.get("FAULTS") or 0)  # how often runs are killed; 0: a few times, and nothing is written
RESULTS = Path(__file__).parents[2] / "bench/results/faults.json"


class FaultCounts:
    """Hooks of pytest that write RESULTS; groups of which nothing ran stay as they were."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Reports of other processes bring along what an item is told here."""
        for item in items:
            if marker := item.get_closest_marker("faults"):
                item.user_properties.append(("group", marker.args[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of every test three times: at its setup, its call and its teardown."""
        group, *told = report.user_properties or [("", "")]
        if group[0] != "group":
            return
        counts = self.groups.setdefault(str(group[1]), {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        counts["seconds"] = round(counts["seconds"] + report.duration, 1)
        if report.when == "call" or not report.passed:
            counts[report.outcome] += 1
        for name, value in told if report.when == "teardown" else ():
            counts[name] = _sum(counts[name], value) if name in counts else value

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Written by the process that hears of all tests, where they ran to their end."""
        if self.groups and exitstatus in (0, 1) and "PYTEST_XDIST_WORKER" not in os.environ:
            from bench.machine import machine

            known = read_json(RESULTS)["groups"] if RESULTS.is_file() else {}
            write_json(RESULTS, {"machine": machine(), "groups": known | self.groups})


def _sum(one: Any, other: Any) -> Any:
    """Of numbers, and of mappings key by key."""
    if isinstance(one, dict):
        return {key: _sum(one.get(key, 0), other.get(key, 0)) for key in sorted({*one, *other})}
    return one + other
