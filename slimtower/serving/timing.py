"""How long one query takes from its text to its hits: the median of several calls, of which the first are warm-up."""

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

CALLS = 20


class Times(NamedTuple):
    """Milliseconds of one call."""

    encode: float
    search: float


class Medians(NamedTuple):
    """Medians over `calls` calls in milliseconds: from text to hits, and of the encoding within that."""

    calls: int
    total: float
    encode: float


def medians(times: Iterable[Times]) -> Medians:
    """The medians of some calls, of which there is at least one."""
    calls = list(times)
    return Medians(len(calls), median(call.encode + call.search for call in calls), median(c.encode for c in calls))


def milliseconds(value: float) -> str:
    """With two significant digits, and no more than a person reads: 13, 2.4, 0.31, 0.012."""
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
