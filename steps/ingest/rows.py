"""Lines of text files read as bytes, records of CSV and TSV, JSON: read so that one bad line costs one row."""

import csv
import gzip
import io
import json
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, NamedTuple, Self, cast

from slimtower.common.errors import UserError


class Defect(Exception):
    """A row that cannot be used; `reason` is the name under which it is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def untraced(self) -> Self:
        """The same, to be kept: what was raised keeps all that was there where it was raised."""
        return type(self)(self.reason)


class MissingTarget(Defect):
    """A row that is whole, but is about a document or a search that is not there (any more)."""


class LeftOut(Defect):
    """A row that is whole, but which a limit or a rule of ours leaves out."""


class Overlong(bytes):
    """The beginning of a line that is too long to be a row."""


LONGEST_LINE = 2**24  # bytes, or characters of CSV and TSV
_KEPT_OF_OVERLONG = 1000
_HEAD = 4096  # bytes by which a file's encoding is told
MOST_GRADE = 1000  # what trec_eval reads takes time and memory with the largest grade
_GRADE = re.compile(r"([+-]?[0-9]{1,9})(\.0*)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain_or_gzip(folder: Path, name: str) -> Path | None:
    """`folder/name`, else `folder/name.gz`, else None; UserError where both are there, and for what is no file."""
    paths = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
    if len(paths) > 1:
        raise UserError(f"{paths[0]}: {paths[1].name} lies beside it, and which one counts cannot be told; remove one")
    return regular_file(paths[0]) if paths else None


def regular_file(path: Path) -> Path:
    """The path; UserError where it is a folder, or a pipe, which could be waited for without end."""
    if not path.is_file():
        raise UserError(f"{path}: is not a file; remove or rename it")
    return path


def whole_lines(handle: IO[AnyStr]) -> Iterator[tuple[AnyStr, bool]]:
    """Lines with their ends, each with whether it is longer than LONGEST_LINE; of such a line only the beginning."""
    while line := handle.readline(LONGEST_LINE):
        rest, is_long = line, False
        while len(rest) == LONGEST_LINE and rest[-1:] not in (b"\n", "\n", "\r"):
            rest, is_long = handle.readline(LONGEST_LINE), True
        yield (line[:_KEPT_OF_OVERLONG] if is_long else line), is_long


def text_encoding(path: Path) -> str:
    """How a file is written: utf-16 where it begins so, as spreadsheets export it, else utf-8-sig."""
    with open_bytes(path) as handle:
        head = handle.read(_HEAD)
    is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head[2:]
    return "utf-16" if is_utf16 else "utf-8-sig"


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes; `.gz` is unpacked."""
    return cast("IO[bytes]", gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb"))


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """UserError where what is read of the file inside is damaged."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the gzip stream is damaged ({error}); fetch the file again") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: its UTF-16 is damaged ({error.reason}); fetch it again, or write UTF-8") from None


def read_lines(path: Path, encoding: str = "") -> Iterator[tuple[int, bytes]]:
    """Yield (1-based line number, UTF-8 bytes without line end) of the lines that are not blank; `.gz` is unpacked.

    A line that is no UTF-8 is read by `encoding`, where one is given. Raises UserError when the file is damaged.
    """
    with sound(path):
        wide = text_encoding(path) == "utf-16"
        with open_bytes(path) as handle:
            lines: Iterable[tuple[bytes, bool]] = whole_lines(handle)
            if wide:
                text = io.TextIOWrapper(handle, "utf-16", errors="surrogatepass", newline="\n")
                lines = ((line.encode("utf-8", "surrogatepass"), is_long) for line, is_long in whole_lines(text))
            for number, (line, is_long) in enumerate(lines, start=1):
                raw = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if is_long:
                    yield number, Overlong(raw)
                elif raw.strip():
                    raw = raw.rstrip(b"\r\n")
                    yield number, recoded(raw, encoding) if encoding and not raw.isascii() else raw


def recoded(raw: bytes, encoding: str) -> bytes:
    """The line in UTF-8: as it is, else as `encoding` reads it; as it is too where neither does."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        try:
            return raw.decode(encoding).encode("utf-8")
        except UnicodeError:
            return raw
    return raw


def decode(raw: bytes) -> str:
    """The row as text; Defect `invalid_utf8` or `line_too_long`."""
    if isinstance(raw, Overlong):
        raise Defect("line_too_long")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Defect("invalid_utf8") from None


def json_object(raw: bytes) -> dict[str, Any]:
    """The row as a JSON object; Defect `invalid_json` or `duplicate_key`, else those of `decode`."""
    value = json_value(decode(raw), "invalid_json")
    if not isinstance(value, dict):
        raise Defect("invalid_json")
    return value


def json_value(text: str, reason: str) -> Any:
    """What a text spells in JSON; Defect of this reason where it is none, and `duplicate_key`."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        raise Defect(reason) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise Defect("duplicate_key")  # which one counts cannot be told
    return mapping


_JSON = json.JSONDecoder(object_pairs_hook=_once)  # json.loads would make one for each row


def grade_of(text: str) -> int:
    """The grade that a judgement spells: `2`, or `2.0` as data frames write it. Defect `bad_grade`."""
    if not (spelled := _GRADE.fullmatch(text.strip())):
        raise Defect("bad_grade")
    return possible_grade(int(spelled[1]))


def possible_grade(grade: int) -> int:
    """The grade; Defect `bad_grade` where it is beyond MOST_GRADE: an id or a time in the wrong column is no grade."""
    if abs(grade) > MOST_GRADE:
        raise Defect("bad_grade")
    return grade


def one_word(text: str) -> str:
    """An id without white space, by which TREC run files separate their columns; Defect `bad_id`."""
    if len(text.split()) != 1:
        raise Defect("bad_id")
    return visible(text)


def visible(text: str) -> str:
    """An id; Defect `bad_id` when it holds control characters, such as NUL, or nothing that can be seen."""
    if not text.isprintable() or not text:
        is_visible = any(sign.isprintable() and not sign.isspace() for sign in text)
        if not is_visible or _CONTROL.search(text):
            raise Defect("bad_id")
    return text


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
