"""Rows of Parquet, CSV, TSV and JSONL files by column names, read so that one bad row costs one row."""

import csv
import difflib
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.ingest import rows
from steps.ingest.batches import Batch, Column, Row, python_values
from steps.ingest.rejects import Rejects
from steps.ingest.rows import (
    Defect,
    Record,
    json_object,
    open_bytes,
    read_lines,
    recoded,
    records,
    sound,
    text_encoding,
    whole_lines,
)

_NAMED_COLUMNS = 20
_DELIMITERS = (",", ";", "\t", "|")
BATCH_ROWS, TEXT_ROWS = 100_000, 16_384  # read at a time as columns: of Parquet, and of text, with all its fields
_PARQUET_ROWS = 16_384  # read at a time where rows, with all their text, are wanted one by one
_TEXT = ("csv", "tsv", "jsonl", "ndjson")
PATTERNS = ("*.parquet", *(f"*.{kind}{packed}" for kind in _TEXT for packed in ("", ".gz")))
PROBED_ROWS = 1000  # a JSONL column that none of the first rows has is a mistake in the column map
_BULK_ACTIONS = {"index", "create"}


class Form(NamedTuple):
    """What a source says of its text files: how lines are written that are no UTF-8, and what is between columns."""

    encoding: str = ""
    delimiter: str = ""


PLAIN = Form()


@dataclass(frozen=True)
class TableFile:
    """A file of rows, its format told by its suffix, and the columns that are read of it.

    A name in the file may differ in case and signs; values have the names that were asked for.
    """

    path: Path
    source: str
    """What rejects call the file."""
    required: Mapping[str, str]
    """Columns that it must have, each with the key of params.yaml that names it."""
    rejects: Rejects
    """Takes the rows that cannot be parsed."""
    optional: Collection[str] = ()
    """Columns whose values are given if it has them."""
    gaps: Collection[str] = ()
    """Those of the required columns that a small file of JSON, one of several, may lack, as a row may."""
    form: Form = PLAIN

    def rows(self) -> Iterator[Row]:
        """Yield the rows. A line of JSON may be an OpenSearch hit (`_source`, or `fields`).

        Action lines of a bulk request are skipped. Raises UserError with file and line for a missing column, an unknown
        format, or a file that is damaged.
        """
        if self._kind == "parquet":
            yield from self._parquet_rows()
        elif self._kind in ("csv", "tsv"):
            yield from self._delimited(self._kind)
        elif self._kind in ("jsonl", "ndjson"):
            yield from self._json_lines()
        else:
            formats = ", ".join(_TEXT)
            raise UserError(f"{self.path}: its suffix is none of parquet, {formats} (the latter also .gz); rename it")

    def batches(self) -> Iterator[Batch]:
        """Yield the rows many at a time, each column by its distinct values; else as of `rows`."""
        if self._kind != "parquet":
            rows = self.rows()
            while some := list(islice(rows, TEXT_ROWS)):
                yield Batch.of_rows(some, (*self.required, *self.optional))
            return
        for lines, arrays in self._parquet(BATCH_ROWS):
            defects: dict[int, str] = {}
            batch = Batch(lines, {name: Column.of_arrow(array, defects) for name, array in arrays.items()})
            self.rejects.count_rows(self.source, len(lines))
            for at in sorted(defects):
                self._reject(batch.row(at), defects[at])
            yield batch.without(defects) if defects else batch

    def _parquet_rows(self) -> Iterator[Row]:
        for lines, arrays in self._parquet(_PARQUET_ROWS):
            defects: dict[int, str] = {}
            columns = [python_values(array, defects) for array in arrays.values()]
            for at, (line, fields) in enumerate(zip(lines.tolist(), zip(*columns, strict=True), strict=True)):
                self.rejects.count_rows(self.source)
                values = dict(zip(arrays, fields, strict=True))
                row = Row(line, values, values)
                if at in defects:
                    self._reject(row, defects[at])
                else:
                    yield row

    def _reject(self, row: Row, reason: str) -> None:
        """A value that Python cannot hold is the defect of its own row."""
        self.rejects.add(self.source, row.line, reason, row.raw())

    @property
    def _kind(self) -> str:
        return self.path.name.lower().removesuffix(".gz").rpartition(".")[2]

    def _parquet(self, batch_rows: int) -> Iterator[tuple[np.ndarray, dict[str, pa.Array]]]:
        """Numbers of rows, and their columns by the names that were asked for."""
        first = 1
        try:
            with pq.ParquetFile(self.path) as file:
                names = check_columns(self.path, "schema", file.schema_arrow.names, self.required, self.optional)
                for batch in file.iter_batches(batch_rows, columns=sorted({*names.values()})):
                    lines = np.arange(first, first + batch.num_rows)
                    first += batch.num_rows
                    yield lines, {ours: batch.column(theirs) for ours, theirs in names.items()}
        except MemoryError:  # pyarrow's is an ArrowException too
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise UserError(
                f"{self.path}: not a Parquet file that can be read ({error}); write or fetch it again"
            ) from None

    def _delimited(self, kind: str) -> Iterator[Row]:
        csv.field_size_limit(rows.LONGEST_LINE)  # Python's own is 131,072 characters, which a document may have
        with sound(self.path):
            encoding = text_encoding(self.path)
            errors = "surrogatepass" if encoding == "utf-16" else "surrogateescape"
            with open_bytes(self.path) as handle:
                text = io.TextIOWrapper(handle, encoding, errors=errors, newline="")
                lines = (_legible(text_line, self.form.encoding) for text_line in whole_lines(text))
                before = next(lines, "")
                delimiter = self.form.delimiter or detect_delimiter(before, kind, self.required)
                has_quotes = kind == "csv" or delimiter != "\t"
                file_records = records(chain([before] if before else [], lines), delimiter, has_quotes=has_quotes)
                first = next(file_records, Record(1, []))
                if first.defect:
                    raise UserError(
                        f"{self.path}: line {first.line}: {first.defect}: {first.raw[:80]!r}; write the header again"
                    )
                header = [name.strip() for name in first.fields]
                theirs = check_columns(self.path, f"line {first.line}", header, self.required, self.optional)
                positions = [(ours, header.index(name)) for ours, name in theirs.items()]
                for line, fields, defect, raw in file_records:
                    self.rejects.count_rows(self.source)
                    if defect:
                        self.rejects.add(self.source, line, defect, raw)
                    else:
                        yield Row(line, {ours: fields[position] for ours, position in positions}, fields)

    def _json_lines(self) -> Iterator[Row]:
        rows = self._json_rows()
        probed = list(islice(rows, PROBED_ROWS))
        theirs: dict[str, str] = {}
        if probed:
            had = sorted({name for row in probed for name in row.values})
            gaps = self.gaps if len(probed) < PROBED_ROWS else ()
            required = {name: key for name, key in self.required.items() if name not in gaps}
            theirs = check_columns(self.path, f"line {probed[0].line}", had, required, (*self.optional, *gaps))
        renamed = {ours: name for ours, name in theirs.items() if ours != name}
        for row in chain(probed, rows):
            ours = {name: row.values[theirs] for name, theirs in renamed.items() if theirs in row.values}
            yield row._replace(values={**row.values, **ours}) if ours else row

    def _json_rows(self) -> Iterator[Row]:
        for line, raw in read_lines(self.path, self.form.encoding):
            try:
                values = json_object(raw)
            except Defect as defect:
                self.rejects.count_rows(self.source)
                self.rejects.add(self.source, line, defect.reason, raw)
                continue
            is_action = len(values) == 1 and not _BULK_ACTIONS.isdisjoint(values)
            if is_action and isinstance(next(iter(values.values())), dict):
                continue
            self.rejects.count_rows(self.source)
            hit = values.get("_source", values.get("fields"))
            if isinstance(hit, dict):
                values = {"_id": values.get("_id"), **hit}
            yield Row(line, values, raw)


def _legible(text_line: tuple[str, bool], encoding: str) -> str:
    """The line, read by `encoding` where it is no UTF-8; in place of a too long one a field that the reader refuses."""
    line, is_long = text_line
    if is_long:
        return f"{'x' * (csv.field_size_limit() + 1)}\n"
    if not encoding or line.isascii():
        return line
    return recoded(line.encode("utf-8", "surrogateescape"), encoding).decode("utf-8", "surrogateescape")


def their_names(ours: Iterable[str], has: Sequence[str]) -> dict[str, str]:
    """The file's name of each of these columns that it has: the same, else the only one alike.

    Names are alike that differ in case or in signs alone, as `Query ID` and `query_id`, `id` and `_id`.
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(has):
        alike.setdefault(_folded(name), []).append(name)
    matches = {name: [name] if name in has else alike.get(_folded(name), []) for name in ours}
    return {name: theirs[0] for name, theirs in matches.items() if len(theirs) == 1}


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def check_columns(
    path: Path, where: str, has: Sequence[str], required: Mapping[str, str], optional: Collection[str]
) -> dict[str, str]:
    """The file's names of the columns; UserError for a required one that it lacks, and for one that it has twice."""
    theirs = their_names((*required, *optional), has)
    for name, key in required.items():
        if name not in theirs:
            near = difflib.get_close_matches(name, has, n=1, cutoff=0.0)
            more = ", ..." if len(has) > _NAMED_COLUMNS else ""
            raise UserError(
                f"{path}: {where}: no column {name!r}, which params.yaml: {key} names; it has"
                f" {', '.join(has[:_NAMED_COLUMNS])}{more}{f'; did you mean {near[0]!r}?' if near else ''};"
                f" name the file's column in {key}"
            )
    for name in theirs.values():
        if has.count(name) > 1:
            raise UserError(
                f"{path}: {where}: {has.count(name)} columns are called {name!r}, and which one counts cannot be told;"
                " rename or leave out the others and write the file again"
            )
    return theirs


def detect_delimiter(header: str, kind: str, required: Collection[str]) -> str:
    """What is between the columns of a header: the sign that the ending promises, else one that gives all required."""
    promised = "\t" if kind == "tsv" else ","
    for sign in (promised, *_DELIMITERS):
        try:
            names = next(csv.reader([header], delimiter=sign), [])
        except csv.Error:
            continue
        if len(their_names(required, [name.strip() for name in names])) == len(required):
            return sign
    return promised
