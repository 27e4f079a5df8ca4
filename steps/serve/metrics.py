"""Counts and times in Prometheus' text format 0.0.4; the processes of one service share theirs by a folder of files."""

import json
import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from steps.core.files import staged_file

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
HELP = {
    "slimtower_requests_total": "Requests answered, by path and status.",
    "slimtower_refused_total": "Requests refused by a limit.",
    "slimtower_request_seconds": "From the first byte of a request to the last of its answer.",
    "slimtower_queries_total": "Queries answered, by system.",
    "slimtower_encode_seconds": "Encoding of a request's queries.",
    "slimtower_search_seconds": "Search of a request's queries.",
    "slimtower_swaps_total": "Releases swapped in, in all processes.",
    "slimtower_load_failures_total": "Tries to poll or load that failed.",
    "slimtower_load_failing": "Releases, or their source, that cannot be loaded now.",
    "slimtower_requests_in_flight": "Requests being answered by this process.",
    "slimtower_release_info": "Releases that answer now.",
    "slimtower_ready": "Whether there is a release that answers.",
    "slimtower_logged_rows_total": "Rows written to the search log.",
    "slimtower_log_failures_total": "Writes to the search log that failed, to be tried again.",
    "slimtower_log_dropped_total": "Rows of the search log that were lost.",
}
Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


class Metrics:
    """Counters and histograms of one process. Safe to use from several threads."""

    def __init__(self, shared: Path | None = None) -> None:
        """`shared`: where the processes of one service leave their counts for each other."""
        self._lock = threading.Lock()
        self._counts: Counter[Series] = Counter()
        self._times: dict[Series, list[float]] = {}  # a count for each bucket and above, then the sum
        self._file = shared / f"{os.getpid()}.json" if shared else None

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, _sorted(labels)] += amount  # type: ignore[assignment]

    def time(self, name: str, seconds: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        with self._lock:
            row = self._times.setdefault((name, _sorted(labels)), [0.0] * (len(BUCKETS) + 2))
            row[bisect_left(BUCKETS, seconds)] += 1
            row[-1] += seconds

    def save(self) -> None:
        """Leave the counts for the other processes."""
        if self._file:
            with staged_file(self._file) as staging:
                staging.write_text(json.dumps(self._state()), encoding="utf-8")

    def text(self, gauges: Iterable[tuple[str, Mapping[str, str], float]]) -> str:
        """Counters and histograms of all processes, and the gauges given of this one."""
        self.save()
        counts, times = self._together()
        lines: list[str] = []
        for name in sorted({name for name, _ in counts}):
            lines += _head(name, "counter")
            lines += [f"{name}{_said(labels)} {_number(value)}" for (of, labels), value in counts.items() if of == name]
        for name in sorted({name for name, _ in times}):
            lines += _head(name, "histogram")
            for (of, labels), row in times.items():
                if of == name:
                    lines += _histogram(name, labels, row)
        shown = ""
        for name, given, value in gauges:
            lines += _head(name, "gauge") if name != shown else []
            lines.append(f"{name}{_said(_sorted(given))} {_number(value)}")
            shown = name
        return "\n".join(lines) + "\n"

    def _state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "counts": [[name, labels, value] for (name, labels), value in self._counts.items()],
                "times": [[name, labels, list(row)] for (name, labels), row in self._times.items()],
            }

    def _together(self) -> tuple[dict[Series, float], dict[Series, list[float]]]:
        """Sums over the processes; those that ended count on, as a counter never falls."""
        states = [self._state()]
        if self._file:
            others = [path for path in self._file.parent.glob("*.json") if path != self._file]
            states += [json.loads(path.read_text(encoding="utf-8")) for path in others]
        counts: dict[Series, float] = {}
        times: dict[Series, list[float]] = {}
        for state in states:
            for name, labels, value in state["counts"]:
                series = (name, _tuples(labels))
                counts[series] = counts.get(series, 0) + value
            for name, labels, row in state["times"]:
                series = (name, _tuples(labels))
                times[series] = [a + b for a, b in zip(times.get(series, [0.0] * len(row)), row, strict=True)]
        return dict(sorted(counts.items())), dict(sorted(times.items()))


def _histogram(name: str, labels: Labels, row: list[float]) -> list[str]:
    lines, below = [], 0.0
    for bound, number in zip((*BUCKETS, float("inf")), row[:-1], strict=True):
        below += number
        edge = "+Inf" if bound == float("inf") else f"{bound:g}"
        lines.append(f"{name}_bucket{_said((*labels, ('le', edge)))} {_number(below)}")
    return [*lines, f"{name}_sum{_said(labels)} {row[-1]!r}", f"{name}_count{_said(labels)} {_number(below)}"]


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _tuples(labels: list[list[str]]) -> Labels:
    return tuple((key, value) for key, value in labels)


def _said(labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
