"""The time that a file's or folder's name says it holds, and the window of time that a run reads. All UTC."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from typing import NamedTuple

from slimtower.common.errors import UserError
from steps.ingest.times import Window

_YEAR = r"(?P<year>19[7-9]\d|20\d\d)"
_MONTH, _DAY = r"(?P<month>0[1-9]|1[0-2])", r"(?P<day>0[1-9]|[12]\d|3[01])"
_FOLDER_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(?:^|/)(?:dt|ds|date|day|event_date|log_date)={_YEAR}-?{_MONTH}(?:-?{_DAY})?(?=[^0-9])",
        rf"(?:^|/)year={_YEAR}/(?:month=(?P<month>0?[1-9]|1[0-2])/(?:day=(?P<day>0?[1-9]|[12]\d|3[01])/)?)?",
        rf"(?:^|/){_YEAR}/(?:{_MONTH}/(?:{_DAY}/)?)?",
        rf"(?:^|/){_YEAR}(?P<separator>[-_.]?){_MONTH}(?P=separator){_DAY}/",
    )
)
_IN_FILE_NAME = re.compile(rf"(?<!\d){_YEAR}(?P<separator>[-_.]?){_MONTH}(?P=separator){_DAY}(?!\d)")
_BARE_YEAR = re.compile(r"(?:^|/)\d{4}/$")
_NO_DATA = re.compile(
    r"(\.(crc|md5|sha\d*|asc|sig|md|rst|html?|pdf|ya?ml|toml|py|sh|sql|tmp)|sums?(\.txt)?"
    r"|(^|/)(readme|licen[cs]e|notice|changelog|manifest)[^/]*)$",
    re.IGNORECASE,
)
_LAST = 253_402_300_799  # the last second of 9999, behind which datetime knows none
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)  # Spark's; its digits are no date


def named_span(name: str) -> Window | None:
    """The time that a name says it holds, None when it says none; a folder's name ends with "/".

    Folders count as partitions when they are dt=2026-01-31 (also ds, date, day, event_date, log_date; also a month),
    year=2026/month=01/day=31, 2026/01/31 or 2026-01-31 (also without or with other separators), each of them cut off
    after the year or month too. In a file's own name every date counts, several as from the first to the last. The
    outermost partition decides and the ones below may only narrow it, so that nothing below a folder is outside of
    the folder's span.
    """
    folders, _, file = name.rpartition("/")
    matches = [match for form in _FOLDER_FORMS for match in form.finditer(f"{folders}/")]
    spans = [_span(match) for match in sorted(matches, key=lambda match: match.start())]
    dates = [span for match in _IN_FILE_NAME.finditer(_UUID.sub("", file)) if (span := _span(match))]
    if dates:
        spans.append(Window(min(date.start for date in dates), max(date.end for date in dates)))
    narrowest: Window | None = None
    for span in spans:
        if span and (narrowest is None or span.within(narrowest)):
            narrowest = span
    return narrowest


def _span(match: re.Match[str]) -> Window | None:
    month, day = match["month"], match["day"]
    try:
        start = datetime(int(match["year"]), int(month or 1), int(day or 1), tzinfo=UTC)
        days = 1 if day else 31 if month else 366
        end = start + timedelta(days=days)
        end = end if day else end.replace(day=1)
    except (ValueError, OverflowError):  # the 30th of February; the end of the calendar
        return None
    return Window(start.timestamp(), end.timestamp())


class Entry(NamedTuple):
    """A file by its posix path below the source's root; its size in bytes; its ETag, "" for a local file."""

    name: str
    size: int
    etag: str


class Below(NamedTuple):
    """What lies right below a folder: names of folders, each ending in "/", files, and names of links to nothing."""

    folders: list[str]
    files: list[Entry]
    dangling: Sequence[str] = ()


class Tree(NamedTuple):
    """A source's root (local folder, or bucket and prefix), and what lies right below each folder under it.

    `children` takes "" for the root, or a folder's name. `real` gives what a name stands for, which is another name
    where it is reached by a link.
    """

    root: str
    children: Callable[[str], Below]
    real: Callable[[str], str] = str


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the fnmatch patterns has the name; none for all.

    Case is no matter where the pattern is an ending, "*.csv". The others are a layout, and a key with an empty part,
    "a//b", has no place in one.
    """
    return not patterns or any(
        fnmatchcase(name.lower(), pattern) if pattern.startswith("*.") else fnmatchcase(name, pattern)
        for pattern in patterns
        if pattern.startswith("*.") or "//" not in name
    )


class Contents(NamedTuple):
    """What lies in a window: entries sorted by name, and names of files and folders that are passed over.

    `unread` no pattern has, but for empty files and what is no data. `doubtful` are left out by a date in a file's own
    name, which may be that of its writing, or by a folder's four digits, which may be no year.
    """

    entries: list[Entry]
    unread: list[str]
    doubtful: list[str]


def contents(tree: Tree, location: str, key: str, window: Window, patterns: Sequence[str]) -> Contents:
    """What lies in the window, descending only into folders that may hold some of it.

    However many links lead to a folder or file, it is there once, under its own name where that is seen, else under
    the first. UserError for nothing, and for a link to nothing: it may have been the window's data.
    """
    selected: list[tuple[bool, Entry]] = []
    unread, doubtful, outside = list[str](), list[str](), list[tuple[Window, str]]()

    def lies_inside(name: str) -> bool:
        span = named_span(name)
        if span and not span.overlaps(window):
            outside.append((span, name))
            return False
        return True

    folders, visited = [(False, "")], set[str]()
    while folders:
        linked, folder = heappop(folders)  # those that no link leads to come first
        if (here := tree.real(folder)) in visited:
            continue
        visited.add(here)
        below = tree.children(folder)
        for name in below.dangling:
            if not _is_hidden(name) and lies_inside(name):
                raise UserError(
                    f"params.yaml: {key}: {tree.root.rstrip('/')}/{name} is a link to nothing, and what it stood for"
                    " would be missing; fix or remove it"
                )
        for name in below.folders:
            if _is_hidden(name):
                continue
            if lies_inside(name):
                heappush(folders, (linked or _is_link(tree, name, here), name))
            elif _BARE_YEAR.search(name):
                doubtful.append(name)
        for entry in below.files:
            if _is_hidden(entry.name):
                continue
            if not matches(entry.name, patterns):
                span = named_span(entry.name)
                if entry.size and not _NO_DATA.search(entry.name) and (span is None or span.overlaps(window)):
                    unread.append(entry.name)
            elif lies_inside(entry.name):
                _check_name(entry.name, tree, key)
                selected.append((linked or _is_link(tree, entry.name, here), entry))
            else:
                doubtful.append(entry.name)
    if selected:
        once = {tree.real(entry.name): entry for _, entry in sorted(selected, reverse=True)}  # the first is kept
        return Contents(sorted(once.values()), unread, doubtful)
    matching = f" that matches {', '.join(patterns)}" if patterns else ""
    if not outside:
        raise UserError(f"params.yaml: {key}: {location} holds no file{matching}; name another place")
    first, last = min(outside)[1], max(outside)[1]
    raise UserError(
        f"params.yaml: {key}: {location} holds no file{matching} from ingest.since to ingest.until"
        f" ({_window_text(window)}); its partitions outside of it go from {first} to {last}; move the window"
    )


def _check_name(name: str, tree: Tree, key: str) -> None:
    """UserError for a name that is not UTF-8, which sources.json cannot hold."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"params.yaml: {key}: {tree.root}: the file name {name!a} is not UTF-8; rename it") from None


def _is_link(tree: Tree, name: str, folder: str) -> bool:
    """Whether a name right below a folder, given by what it stands for, is a link."""
    return tree.real(name) != f"{folder}{name.removesuffix('/').rpartition('/')[2]}{'/' * name.endswith('/')}"


def _window_text(window: Window) -> str:
    sides = zip(window, ("the first", "the last"), strict=True)
    since, until = (
        f"{datetime.fromtimestamp(min(side, _LAST), UTC):%Y-%m-%d %H:%M}" if math.isfinite(side) else open_side
        for side, open_side in sides
    )
    return f"{since} to {until}, UTC"


def _is_hidden(name: str) -> bool:
    """Whether the last part of a name says that it is no data: .hidden, _SUCCESS, _temporary/, but not _dt=2026/."""
    last = name.removesuffix("/").rpartition("/")[2]
    return last.startswith(".") or (last.startswith("_") and "=" not in last)
