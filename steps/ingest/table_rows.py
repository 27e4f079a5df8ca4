"""Rows of Parquet, CSV, TSV and JSONL files by column names, read so that one bad row costs one row."""

import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.ingest import rows
from steps.ingest.delimited import Record, records
from steps.ingest.parquet_rows import parquet_rows
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, json_object, read_lines, whole_lines

PATTERNS = ("*.parquet", "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.jsonl", "*.jsonl.gz")
PROBED_ROWS = 1000  # a JSONL column that none of the first rows has is a mistake in the column map
_NAMED_COLUMNS = 20
_BULK_ACTIONS = {"index", "create"}


class Row(NamedTuple):
    """A row: its 1-based line (its number in Parquet), the values of the columns asked for, and what was read."""

    line: int
    values: Mapping[str, Any]
    source: Any

    def raw(self) -> bytes | str:
        """The row for the table of rejects."""
        if isinstance(self.source, bytes):
            return self.source
        if isinstance(self.source, list):
            return "\t".join(self.source)
        return json.dumps(self.source, default=str, ensure_ascii=False)


class Gaps:
    """Columns that a row of JSON may lack, and so a whole small file: none is named wrong that another file has."""

    def __init__(self, *columns: str) -> None:
        self.columns = frozenset(columns)
        self._had: set[str] = set()
        self._first: tuple[Path, str] | None = None

    def may_lack(self, path: Path, where: str, had: Collection[str], wanted: Collection[str], rows: int) -> bool:
        """Note what a file's first rows had; whether those `wanted` that they lack may be missing there."""
        self._had.update(had)
        if rows >= PROBED_ROWS or not {*wanted}.difference(had) <= self.columns:
            return False
        self._first = self._first or (path, where)
        return True

    def check(self, wanted: Mapping[str, str]) -> None:
        """UserError, after all files, for a column that none of them had."""
        missing = {name: key for name, key in wanted.items() if name in self.columns - self._had}
        if self._first and missing:
            _check(*self._first, sorted(self._had), missing, ())


def read_rows(
    path: Path,
    *,
    wanted: Mapping[str, str],
    optional: Collection[str] = (),
    source: str,
    rejects: Rejects,
    gaps: Gaps | None = None,
) -> Iterator[Row]:
    """Yield the rows of a file, its format told by the suffix; rows that cannot be parsed become rejects.

    `wanted`: columns that the file must have, each with the key of params.yaml that names it. `optional`: columns
    whose values are given where the file has them. `gaps`: what a small file of JSON, one of several, may lack. A line
    of JSON may be an OpenSearch hit (`_source`); the action lines of a bulk request are passed over.
    Raises UserError with file and line for a missing column, an unknown format, or a file that is damaged.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield from _parquet(path, wanted, optional, source, rejects)
    elif kind in ("csv", "tsv"):
        yield from _delimited(path, kind, wanted, optional, source, rejects)
    elif kind == "jsonl":
        yield from _json_lines(path, wanted, source, rejects, gaps)
    else:
        raise UserError(f"{path}: its suffix is none of parquet, csv, tsv, jsonl (the last three also .gz); rename it")


def _check(path: Path, where: str, has: Sequence[str], wanted: Mapping[str, str], optional: Collection[str]) -> None:
    """UserError for the first wanted column that the file lacks, and for a column to be read that it has twice."""
    for name, key in wanted.items():
        if name not in has:
            near = difflib.get_close_matches(name, has, n=1, cutoff=0.0)
            more = ", ..." if len(has) > _NAMED_COLUMNS else ""
            raise UserError(
                f"{path}: {where}: no column {name!r}, which params.yaml: {key} names; it has"
                f" {', '.join(has[:_NAMED_COLUMNS])}{more}{f'; did you mean {near[0]!r}?' if near else ''};"
                f" name the file's column in {key}"
            )
    for name in (*wanted, *optional):
        if has.count(name) > 1:
            raise UserError(
                f"{path}: {where}: {has.count(name)} columns are called {name!r}, and which one counts cannot be told;"
                " rename or leave out the others and write the file again"
            )


def _parquet(
    path: Path, wanted: Mapping[str, str], optional: Collection[str], source: str, rejects: Rejects
) -> Iterator[Row]:
    def check(has: Sequence[str]) -> None:
        _check(path, "schema", has, wanted, optional)

    for line, values, defect in parquet_rows(path, [*wanted, *optional], check):
        rejects.count_row(source)
        row = Row(line, values, values)
        if defect:
            rejects.add(source, line, defect, row.raw())
        else:
            yield row


def _delimited(
    path: Path, kind: str, wanted: Mapping[str, str], optional: Collection[str], source: str, rejects: Rejects
) -> Iterator[Row]:
    csv.field_size_limit(rows.LONGEST_LINE)  # Python's own is 131,072 characters, which a document may have
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as handle:
            text = io.TextIOWrapper(handle, encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[arg-type]
            found = records(map(_shortened, whole_lines(text)), kind)
            first = next(found, Record(1, []))
            if first.defect:
                raise UserError(
                    f"{path}: line {first.line}: {first.defect}: {first.raw[:80]!r}; write the header again"
                )
            header = [name.strip() for name in first.fields]
            _check(path, f"line {first.line}", header, wanted, optional)
            places = [(name, header.index(name)) for name in {*wanted, *optional} if name in header]
            for record in found:
                rejects.count_row(source)
                if record.defect:
                    rejects.add(source, record.line, record.defect, record.raw)
                else:
                    yield Row(record.line, {name: record.fields[place] for name, place in places}, record.fields)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the gzip stream is damaged ({error}); fetch the file again") from None


def _shortened(read: tuple[str, bool]) -> str:
    """The line; in place of one that is too long a field that is, which the format's reader refuses."""
    line, is_long = read
    return f"{'x' * (csv.field_size_limit() + 1)}\n" if is_long else line


def _json_lines(
    path: Path, wanted: Mapping[str, str], source: str, rejects: Rejects, gaps: Gaps | None
) -> Iterator[Row]:
    rows = _json_rows(path, source, rejects)
    probed = list(islice(rows, PROBED_ROWS))
    if probed:
        had = {name for row in probed for name in row.values}
        where = f"line {probed[0].line}"
        if not (gaps and gaps.may_lack(path, where, had, wanted, len(probed))):
            _check(path, where, sorted(had), wanted, ())
    yield from chain(probed, rows)


def _json_rows(path: Path, source: str, rejects: Rejects) -> Iterator[Row]:
    for line, raw in read_lines(path):
        try:
            values = json_object(raw)
        except Defect as defect:
            rejects.count_row(source)
            rejects.add(source, line, defect.reason, raw)
            continue
        if len(values) == 1 and not _BULK_ACTIONS.isdisjoint(values) and isinstance(next(iter(values.values())), dict):
            continue
        rejects.count_row(source)
        if isinstance(hit := values.get("_source"), dict):
            values = {"_id": values.get("_id"), **hit}
        yield Row(line, values, raw)
