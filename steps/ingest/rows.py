"""Rows of text files read as bytes, so that one bad line costs one row."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steps.core.errors import UserError


class Defect(Exception):
    """A row that cannot be used; `reason` is the name under which it is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def plain_or_gzip(folder: Path, name: str) -> Path | None:
    """`folder/name`, else `folder/name.gz`, else None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (1-based line number, bytes without line end) of the lines that are not blank; `.gz` is unpacked.

    Raises UserError when the gzip stream is damaged.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                raw = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if raw.strip():
                    yield number, raw.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the gzip stream is damaged ({error}); fetch the file again") from None


def decode(raw: bytes) -> str:
    """The row as text; Defect `invalid_utf8`."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Defect("invalid_utf8") from None


def json_object(raw: bytes) -> dict[str, Any]:
    """The row as a JSON object; Defect `invalid_utf8` or `invalid_json`."""
    try:
        value = json.loads(decode(raw))
    except (ValueError, RecursionError):
        raise Defect("invalid_json") from None
    if not isinstance(value, dict):
        raise Defect("invalid_json")
    return value


def text_field(row: dict[str, Any], name: str, *, optional: bool = False) -> str:
    """A string of the row, stripped; Defect `missing_field`, `wrong_type` or `invalid_utf8`."""
    value = row.get(name)
    if value is None:
        if optional:
            return ""
        raise Defect("missing_field")
    if not isinstance(value, str):
        raise Defect("wrong_type")
    try:
        value.encode("utf-8")  # JSON escapes can spell half a surrogate pair, which no UTF-8 file can hold
    except UnicodeEncodeError:
        raise Defect("invalid_utf8") from None
    return value.strip()


def id_field(row: dict[str, Any], name: str) -> str:
    """An id of the row; whole numbers count as text. Defect `bad_id` when it is empty or holds white space."""
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = text_field(row, name)
    if not text or len(text.split()) != 1:
        raise Defect("bad_id")  # TREC run files separate their columns by white space
    return text
