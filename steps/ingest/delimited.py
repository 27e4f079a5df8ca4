"""Records of CSV and TSV text, each with its line, read so that an unbalanced quote costs the line that has it."""

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Record(NamedTuple):
    """A record: its 1-based first line, its fields, and where it is defect the reason and what was read."""

    line: int
    fields: list[str]
    defect: str = ""
    raw: str = ""


class _Lines:
    """Lines that can be given back; `consumed` are those read since it was last cleared."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._waiting: deque[str] = deque()
        self.consumed: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._lines)
        self.consumed.append(line)
        return line

    def keep_first(self) -> str:
        """Give all but the first of the taken lines back; returns the first."""
        self._waiting.extendleft(reversed(self.consumed[1:]))
        return self.consumed[0]


def records(lines: Iterable[str], delimiter: str, *, has_quotes: bool) -> Iterator[Record]:
    """Yield the records that are not blank, the header first; each should have its fields.

    A quoted field may hold line ends; TSV has no quotes, as a query may hold a lone one. A quote that is not
    closed takes in every line up to the next quote: a record over several lines which is not well formed is therefore
    the defect of its first line, and the others are read again.
    """
    source = _Lines(lines)
    reader = csv.reader(source, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE)
    line, width = 1, 0
    while True:
        source.consumed.clear()
        fields: list[str] = []
        failure = ""
        try:
            fields = next(reader, [])
        except csv.Error as error:
            failure = str(error)
        if not source.consumed:
            return
        first, several = line, len(source.consumed) > 1
        width = width or len(fields)
        if several and (failure or len(fields) != width or not _well_formed(source.consumed, delimiter)):
            line += 1
            yield Record(first, [], "unclosed_quote", source.keep_first().rstrip("\r\n"))
            continue
        line += len(source.consumed)
        if failure:
            yield Record(first, [], "invalid_csv", failure)
        elif fields and len(fields) != width:
            reason = "missing_field" if len(fields) < width else "too_many_columns"
            yield Record(first, fields, reason, "\t".join(fields))
        elif fields:
            yield Record(first, fields)


def _well_formed(lines: Iterable[str], delimiter: str) -> bool:
    """Whether every quote of the lines of a CSV record is where the format has it."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True
