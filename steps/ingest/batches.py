"""Rows of a table, one by one, or many at a time as columns, of which each distinct value is read once."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.ingest.rows import Defect

_UNREADABLE = (ValueError, ArithmeticError, LookupError, pa.ArrowException)


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


class Parsed(NamedTuple):
    """What the values of a column mean, each distinct value parsed once."""

    values: list[Any]
    """Of the distinct values; None if it is a defect."""
    defects: dict[int, Defect]
    """Of the distinct values that are one, by their numbers."""
    codes: np.ndarray
    """Number of each row's value, `(rows,)`."""

    @property
    def is_ok(self) -> np.ndarray:
        """Which rows have a value that means something, `(rows,)`."""
        return ~np.isin(self.codes, list(self.defects))

    def array(self, kind: type) -> np.ndarray:
        """The meanings, `(rows,)`; 0 for a defect."""
        values = [0 if value is None else value for value in self.values] if self.defects else self.values
        return np.array(values, dtype=kind)[self.codes]


class Column(NamedTuple):
    """A column of a batch: the value of row `i` is `values[codes[i]]`."""

    values: list[Any]
    codes: np.ndarray

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Self:
        """Of Python's values. Lists and objects are each a value of their own; 1, 1.0 and True differ."""
        try:
            return cls.of_arrow(pa.array(values, pa.string()), {})
        except (pa.ArrowException, UnicodeError):  # not all are text, or not all of that is UTF-8
            pass
        numbers: dict[Any, int] = {}
        distinct: list[Any] = []
        codes = []
        for value in values:
            try:
                code = numbers.setdefault(value if type(value) is str else (type(value), value), len(distinct))
            except TypeError:  # of a list
                code = len(distinct)
            if code == len(distinct):
                distinct.append(value)
            codes.append(code)
        return cls(distinct, np.array(codes, dtype=np.int32))

    @classmethod
    def of_each(cls, column: pa.Array, defects: dict[int, str]) -> Self:
        """Of Arrow's values, each as one of its own; notes the rows of those that Python cannot hold, and why."""
        return cls(python_values(column, defects), np.arange(len(column)))

    @classmethod
    def of_arrow(cls, column: pa.Array, defects: dict[int, str]) -> Self:
        """Of Arrow's distinct values; notes rows as `of_each` does."""
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        try:
            coded = pc.dictionary_encode(plain, null_encoding="encode")
        except pa.ArrowNotImplementedError:  # of lists
            return cls.of_values(python_values(plain, defects))
        codes = coded.indices.to_numpy()
        of_distinct: dict[int, str] = {}
        values = python_values(coded.dictionary, of_distinct)
        for row in np.flatnonzero(np.isin(codes, list(of_distinct))).tolist():
            defects.setdefault(row, of_distinct[codes[row]])
        return cls(values, codes)

    def __getitem__(self, row: Any) -> Any:
        return self.values[self.codes[row]]

    def parsed(self, parse: Callable[[Any], Any], known: Mapping[str, Any] | None = None) -> Parsed:
        """The column's meanings; `parse` raises Defect for one that has none, and is not asked for `known` texts."""
        meanings, defects = [None] * len(self.values), dict[int, Defect]()
        if known:
            meanings = [known.get(value) if type(value) is str else None for value in self.values]
        for number, meaning in enumerate(meanings):
            if meaning is None:
                try:
                    meanings[number] = parse(self.values[number])
                except Defect as defect:
                    defects[number] = defect
        return Parsed(meanings, defects, self.codes)


class Batch(NamedTuple):
    """Rows of a file, in order, as columns."""

    lines: np.ndarray
    """1-based, `(rows,)`."""
    columns: Mapping[str, Column]
    """By the names that were asked for."""
    rows: Sequence[Row] = ()
    """As they were read, where that was one by one."""

    @classmethod
    def of_rows(cls, rows: Sequence[Row], names: Iterable[str]) -> Self:
        """Of rows that were read one by one; a row may lack a column."""
        columns = {name: Column.of_values([row.values.get(name) for row in rows]) for name in names}
        return cls(np.array([row.line for row in rows]), columns, rows)

    def row(self, at: int) -> Row:
        """The row at this place of the batch."""
        if self.rows:
            return self.rows[at]
        values = {name: column[at] for name, column in self.columns.items()}
        return Row(int(self.lines[at]), values, values)

    def without(self, places: Collection[int]) -> "Batch":
        """The batch less the rows at these places."""
        keep = np.setdiff1d(np.arange(len(self.lines)), list(places))
        columns = {name: column._replace(codes=column.codes[keep]) for name, column in self.columns.items()}
        return Batch(self.lines[keep], columns, [self.rows[at] for at in keep.tolist()] if self.rows else ())


def python_values(column: pa.Array, defects: dict[int, str]) -> list[Any]:
    """Arrow's values as Python's; notes the places of those that Python cannot hold, and why.

    A date that no calendar of Python's has is given as its number, text that is not UTF-8 with marks for what is not.
    """
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's times have no nanoseconds
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except _UNREADABLE:
        return [_python_value(scalar, at, defects) for at, scalar in enumerate(column)]
    return values


def _python_value(scalar: pa.Scalar, at: int, defects: dict[int, str]) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        defects.setdefault(at, "invalid_utf8")
        is_text = isinstance(scalar, pa.StringScalar | pa.LargeStringScalar | pa.StringViewScalar)
        return scalar.as_buffer().to_pybytes().decode("utf-8", errors="replace") if is_text else f"<{scalar.type}>"
    except _UNREADABLE:
        is_time = pa.types.is_temporal(scalar.type)
        defects.setdefault(at, "bad_timestamp" if is_time else "unreadable_value")
        return scalar.value if is_time else f"<{scalar.type}>"
