"""Times of a log: what is read as unix seconds, and the window in which impressions count."""

import math
from datetime import date
from typing import Any, NamedTuple, Self

from steps.ingest.params import iso_seconds
from steps.ingest.rows import Defect

_FIRST_MILLISECONDS = 10**11  # as seconds this is the year 5138, as milliseconds 1973
_TOO_LARGE = 10**14
_DAY_DIGITS = 8  # "20260131", which as a number would be a day of 1970


class Window(NamedTuple):
    """From `since` to before `until`, ISO dates or times in UTC ("" = open), also as unix seconds."""

    since: str
    until: str
    start: float
    end: float

    @classmethod
    def of(cls, since: str, until: str) -> Self:
        """The window between two ISO dates or times, either of which may be ""."""
        return cls(since, until, iso_seconds(since) if since else -math.inf, iso_seconds(until) if until else math.inf)

    def holds(self, seconds: int) -> bool:
        """Whether a time lies inside: the start does, the end does not."""
        return self.start <= seconds < self.end


ALWAYS = Window.of("", "")


def unix_seconds(value: Any) -> int:
    """Whole unix seconds of a value: a number (seconds, or milliseconds from 1e11 on), ISO 8601 text or a date.

    UTC where no zone is named. Defect `missing_field`, or `bad_timestamp`, which a time before 1970 is too.
    """
    if value is None or value == "":
        raise Defect("missing_field")
    if isinstance(value, str):
        value = _parsed(value.strip())
    elif isinstance(value, date):
        value = _iso(value.isoformat())
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _TOO_LARGE:
        raise Defect("bad_timestamp")
    return int(value if value < _FIRST_MILLISECONDS else value // 1000)


def _parsed(text: str) -> float | None:
    """The number or time that a text spells, None for neither."""
    day = _iso(text) if len(text) == _DAY_DIGITS and text.isdigit() else None
    if day is not None:
        return day
    try:
        return float(text)
    except ValueError:
        return _iso(text)


def _iso(text: str) -> int | None:
    try:
        seconds = iso_seconds(text)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds < _FIRST_MILLISECONDS else None
