"""What the tests marked `faults` did, counted by what they are of: `make test-faults` asks for all of it.

A marker names the group, as in `pytest.mark.faults("bad input")`; what a test tells `record_property` is summed up. A
file of tests is written down once all that it has of faults has run; one that runs in part leaves what was known.
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slimtower.common.files import read_json, write_json
from steps.tracking.run_ids import git_commit

FAULTS = int(os.environ.get("FAULTS") or 0)  # how often runs are killed; 0: a few times, and nothing is written
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench/results/faults.json"
Groups = dict[str, dict[str, Any]]  # counts by group


class FaultCounts:
    """Hooks of pytest that write RESULTS."""

    def __init__(self) -> None:
        self.files: dict[str, Groups] = {}
        self._of_file, self._ended = Counter[str](), Counter[str]()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Also of those that a choice leaves out later."""
        self._of_file[_file(item.nodeid)] += item.get_closest_marker("faults") is not None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Reports of other processes bring along what an item is told here: its group, how many its file has."""
        chosen = any("::" in argument for argument in session.config.args)
        for item in session.items:
            if marker := item.get_closest_marker("faults"):
                of_file = 0 if chosen else self._of_file[_file(item.nodeid)]
                item.user_properties.append(("group", [marker.args[0], of_file]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of every test three times: at its setup, its call and its teardown."""
        named, *properties = report.user_properties or [("", "")]
        if named[0] != "group":
            return
        (group, of_file), file = named[1], _file(report.nodeid)
        no_counts = {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0}
        counts = self.files.setdefault(file, {}).setdefault(str(group), no_counts)
        counts["seconds"] += report.duration
        if report.when == "call" or not report.passed:
            counts[report.outcome] += 1
        if report.when != "teardown":
            return
        for name, value in properties:
            counts[name] = _sum(counts[name], value) if name in counts else value
        self._ended[file] += 1
        if self._ended[file] == of_file and "PYTEST_XDIST_WORKER" not in os.environ:
            _write(file, self.files[file])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what is not counted."""
        recorded = read_json(RESULTS)["files"] if RESULTS.is_file() else {}
        if partial := [file for file, groups in self.files.items() if recorded.get(file, {}).get("groups") != groups]:
            terminalreporter.write_line(f"faults: run in part and not counted: {', '.join(partial)}")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _write(file: str, groups: Groups) -> None:
    """Put a file's counts beside those of all other files that are still there, and sum them up."""
    for counts in groups.values():
        counts["seconds"] = round(counts["seconds"], 1)
    files = read_json(RESULTS).get("files", {}) if RESULTS.is_file() else {}
    files = {name: record for name, record in files.items() if (ROOT / name).is_file()}
    files[file] = {"machine": _machine(), "git_commit": _commit(), "code_digests": _code(), "groups": groups}
    totals: Groups = {}
    for record in files.values():
        for group, counts in record["groups"].items():
            totals[group] = _sum(totals.get(group, {}), counts)
    origin = {"machine": _machine(), "git_commit": _commit(), "code_digests": _code()}
    write_json(RESULTS, {**origin, "groups": totals, "files": files})


@cache
def _commit() -> str:
    return git_commit()


@cache
def _code() -> dict[str, str]:
    from bench.machine import measured_code

    return measured_code(RESULTS)


@cache
def _machine() -> dict[str, object]:
    from bench.machine import machine

    return machine()


def _sum(first: Any, second: Any) -> Any:
    """Of numbers, and of mappings key by key."""
    if isinstance(first, dict):
        keys = dict.fromkeys([*first, *second])
        return {
            key: _sum(first[key], second[key]) if key in first and key in second else {**second, **first}[key]
            for key in keys
        }
    return round(first + second, 1) if isinstance(first, float) else first + second
