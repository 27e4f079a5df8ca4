"""Times of a log: what is read as unix seconds, and the window in which impressions count."""

import math
import re
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, Self

from steps.ingest.params import iso_seconds, iso_time
from steps.ingest.rows import Defect

_LEAST = 10**8  # seconds: 1973. What is less is a year, a month or a day in digits
_FIRST_MILLISECONDS = 10**11  # as seconds this is the year 5138, as milliseconds 1973
_TOO_LARGE = 4_102_444_800_000  # milliseconds: 2100
_SPELT = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}  # by the number of digits
_LAST = 253_402_300_799  # the last second of 9999, behind which datetime knows none
_ALSO_COUNTS, _FIRST_YEAR, _LAST_YEAR = (10, 12), 1995, 2099  # such digits are of a time in these years, or a count


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

    def holds(self, seconds: float) -> bool:
        """Whether a time lies inside: the start does, the end does not."""
        return self.start <= seconds < self.end

    def longer(self, seconds: int) -> Self:
        """The window that ends so much later."""
        if not self.until:
            return self
        return self.of(self.since, datetime.fromtimestamp(min(self.end + seconds, _LAST), UTC).isoformat())


ALWAYS = Window.of("", "")


def unix_seconds(value: Any) -> int:
    """Whole seconds of `unix_time`."""
    return int(unix_time(value))


def unix_time(value: Any) -> float:
    """Unix seconds of a value: a number (seconds, or milliseconds from 1e11 on), ISO 8601 text or a date.

    8, 10, 12 or 14 digits that spell a day or a time are that. UTC where no zone is named. Defect `missing_field`,
    or `bad_timestamp`, which a time before 1970 is too, and a number that would be one before 1973 or after 2099.
    """
    if value is None or value == "":
        raise Defect("missing_field")
    spelt = _iso(value.isoformat() if isinstance(value, date) else _plain(value))
    seconds = spelt if spelt is not None else _counted(value)
    if seconds is None or seconds < 0:
        raise Defect("bad_timestamp")
    return seconds


def _plain(value: Any) -> str:
    """What a value spells; of a whole number, as a float or as its text, without a decimal point."""
    text = (str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)).strip()
    return re.sub(r"^(\d+)\.0*$", r"\1", text)


def _counted(value: Any) -> float | None:
    """Seconds of a number of them, or of milliseconds; None for what is no number, too small or too large."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not _LEAST <= number < _TOO_LARGE:
        return None
    return number if number < _FIRST_MILLISECONDS else number / 1000


def _iso(text: str) -> float | None:
    """Seconds of a date or time, also of one in digits alone."""
    if re.fullmatch(r"\d+\.\d+", text):  # counts; Python would read a day, any sign, and the time of that day
        return None
    try:
        seconds = _of_digits(text) if text.isdigit() else iso_time(text)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds < _FIRST_MILLISECONDS else None


def _of_digits(text: str) -> int:
    """Seconds of what digits spell; ValueError where they spell none, or count."""
    moment = datetime.strptime(text, _SPELT.get(len(text), "no such")).replace(tzinfo=UTC)
    if len(text) in _ALSO_COUNTS and not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(text)
    return int(moment.timestamp())
