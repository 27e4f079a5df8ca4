"""Times of a log: what is read as unix seconds, and the window in which impressions count."""

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

from steps.ingest.rows import Defect

_MIN_SECONDS = 10**8  # seconds: 1973. What is less is a year, a month or a day in digits
_FIRST_MILLISECONDS = 10**11  # as seconds this is the year 5138, as milliseconds 1973
_TOO_LARGE = 4_102_444_800  # seconds: 2100
_SPELT = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S", 17: "%Y%m%d%H%M%S%f"}  # by their digits
_ALSO_COUNTS, _FIRST_YEAR, _LAST_YEAR = (10, 12), 1995, 2099  # such digits are of a time in these years, or a count
_FIRST_SPELT = _FIRST_YEAR * 10**6  # ten digits: an hour of that year; those below are seconds

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]?\s+)?"
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})[a-z]*\.?"
_DAY, _YEAR = r"(?P<day>\d{1,2})", r"(?P<year>\d{4})"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?)?(?:\s*(?P<half>[ap]m))?"
_ZONE = r"(?:\s*(?P<zone>(?:utc|gmt)?[+-]\d\d?(?::?\d\d)?|[a-z]{1,5}|[a-z_]+(?:/[a-z_+-]+)+))?"
_NOTE = r"\s*(?:\[(?P<region>[a-z_]+(?:/[a-z_+-]+)+)\]|\([^()]*\))?"
_FORMS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"{_YEAR}(?P<by>[-/.])(?P<month>\d{{1,2}})(?P=by){_DAY}(?:(?:\s+|t){_CLOCK})?{_ZONE}{_NOTE}",  # BigQuery, Java
        rf"{_WEEKDAY}{_DAY}[-/ ]{_MONTH}[-/ ]{_YEAR}(?:[\s:,t]+{_CLOCK})?{_ZONE}{_NOTE}",  # RFC 822, Apache; and Kibana
        rf"{_WEEKDAY}{_MONTH}\s+{_DAY}(?:st|nd|rd|th)?,?\s+{_YEAR}(?:,?\s*(?:@|at)?\s*{_CLOCK})?{_ZONE}{_NOTE}",
        rf"{_WEEKDAY}{_MONTH}\s+{_DAY}\s+{_CLOCK}{_ZONE}\s+{_YEAR}",  # ctime, with a zone as date writes it
    )
]
_HOURS = {
    "z": 0, "ut": 0, "utc": 0, "gmt": 0, "wet": 0, "west": 1, "cet": 1, "cest": 2, "eet": 2, "eest": 3,
    "est": -5, "edt": -4, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7,
}  # fmt: skip


class Window(NamedTuple):
    """Unix seconds from `start` up to, and not including, `end`."""

    start: float = -math.inf
    end: float = math.inf

    @classmethod
    def of(cls, since: str, until: str) -> Self:
        """The window between two ISO dates or times, UTC where they name no zone; "" leaves a side open."""
        return cls(int(iso_time(since)) if since else -math.inf, int(iso_time(until)) if until else math.inf)

    def holds(self, seconds: float) -> bool:
        """Whether a time lies inside: the start does, the end does not."""
        return self.start <= seconds < self.end

    def overlaps(self, other: "Window") -> bool:
        """Whether the two have a moment in common."""
        return self.start < other.end and other.start < self.end

    def within(self, other: "Window") -> bool:
        """Whether the other has all of this one."""
        return other.start <= self.start and self.end <= other.end

    def longer(self, seconds: int) -> "Window":
        """The window that ends so much later."""
        return Window(self.start, self.end + seconds)


ALWAYS = Window()


def iso_time(text: str) -> float:
    """Unix time of an ISO 8601 date or time, UTC where it names no zone; ValueError when it is neither."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def unix_time(value: Any, form: str = "") -> float:
    """Unix seconds of a value: a number, ISO 8601 text, a date, or a text that names its month or begins with a year.

    A number counts seconds, or by its size milli-, micro- or nanoseconds. 8, 10, 12, 14 or 17 digits that spell a day
    or a time are that. Text of `form` (as of strptime) is read by it. UTC where no zone is named. Defect
    `missing_field`, or `bad_timestamp`, which a time before 1970 is too, and a number that would be one before 1973 or
    after 2099.
    """
    if type(value) is int and not form and _MIN_SECONDS <= value < _FIRST_SPELT:  # the usual case
        return float(value)
    if value is None or value == "":
        raise Defect("missing_field")
    text = value.isoformat() if isinstance(value, date) else _plain(value)
    seconds = _formed(text, form) if form else None
    for parse in (_iso, _counted, _written):
        if seconds is None:
            seconds = parse(value if parse is _counted else text)
    if seconds is None or not 0 <= seconds < _FIRST_MILLISECONDS:
        raise Defect("bad_timestamp")
    return seconds


def _plain(value: Any) -> str:
    """What a value spells; of a whole number, as a float or as its text, without a decimal point."""
    try:
        text = (str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)).strip()
    except ValueError:  # a number of thousands of digits
        return "number"
    return re.sub(r"^(\d+)\.0*$", r"\1", text) if "." in text else text


def _formed(text: str, form: str) -> float | None:
    try:
        moment = datetime.strptime(text, form)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _counted(value: Any) -> float | None:
    """Seconds of a number of them, or of a thousandth of them, and so on; None for no number of a time of ours."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if number < _FIRST_MILLISECONDS:
        return number if _MIN_SECONDS <= number < _TOO_LARGE else None
    units = (10**3, 10**6, 10**9)
    return next((number / unit for unit in units if _MIN_SECONDS * unit <= number < _TOO_LARGE * unit), None)


def _iso(text: str) -> float | None:
    if re.fullmatch(r"\d+\.\d+", text):  # counts; Python would read a day, any sign, and the time of that day
        return None
    try:
        return _of_digits(text) if text.isdigit() else iso_time(text.upper())
    except (ValueError, OverflowError):
        return None


def _of_digits(text: str) -> float:
    """Seconds of what digits spell; ValueError where they spell none, or count."""
    counts = len(text) in _ALSO_COUNTS and not _FIRST_YEAR <= int(text[:4]) <= _LAST_YEAR
    if counts or len(text) not in _SPELT or int(text[4:6]) > 12:  # strptime takes its time, and a month of one digit
        raise ValueError(text)
    return datetime.strptime(text, _SPELT[len(text)]).replace(tzinfo=UTC).timestamp()


def _written(text: str) -> float | None:
    """Seconds of a text in one of the forms that can be read in one way: its month is a name, or its year is first."""
    if len(text) > 100:
        return None
    fields = next((match.groupdict() for form in _FORMS if (match := form.fullmatch(text))), None)
    if fields is None:
        return None
    hour = int(fields["hour"] or 0)
    if half := fields.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half.lower() == "pm")
    name = fields.get("name")
    try:
        return datetime(
            int(fields["year"]),
            _MONTHS.index(name.lower()) + 1 if name else int(fields["month"]),
            int(fields["day"]),
            hour,
            int(fields["minute"] or 0),
            int(fields["second"] or 0),
            int((fields["part"] or "0").ljust(6, "0")[:6]),
            _zone(fields["zone"] or fields.get("region") or "utc"),
        ).timestamp()
    except (ValueError, OverflowError, LookupError):
        return None


@lru_cache(maxsize=100)
def _zone(text: str) -> tzinfo:
    """A zone by its offset, by a name that no other zone has, or by its region; ValueError or LookupError for none."""
    if "/" in text:
        return ZoneInfo(text)
    offset = re.fullmatch(r"(?:utc|gmt)?([+-])(\d\d?)(?::?(\d\d))?", text, re.IGNORECASE)
    if not offset:
        return timezone(timedelta(hours=_HOURS[text.lower()]))
    ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    return timezone(ahead if offset[1] == "+" else -ahead)
