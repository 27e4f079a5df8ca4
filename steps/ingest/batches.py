"""Rows of a table, one by one, or many at a time as columns, of which each distinct value is read once."""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.ingest.rows import Defect

_UNREADABLE = (ValueError, ArithmeticError, LookupError, pa.ArrowException)

_CODED = (  # types whose distinct values Arrow gives, with their nulls and signs
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64,
    pa.types.is_boolean, pa.types.is_timestamp, pa.types.is_date,
)  # fmt: skip


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
        is_ok = np.ones(len(self.values), dtype=bool)
        is_ok[list(self.defects)] = False
        return is_ok[self.codes]

    def array(self, kind: type) -> np.ndarray:
        """The meanings, `(rows,)`; 0 for a defect."""
        return np.array([0 if value is None else value for value in self.values], dtype=kind)[self.codes]


class Column(NamedTuple):
    """A column of a batch: the value of row `i` is `values[codes[i]]`."""

    values: list[Any]
    codes: np.ndarray

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Self:
        """Of Python's values. Lists and objects are each a value; 1, 1.0 and True differ, as 0.0 and -0.0 do."""
        if set(map(type, values)) <= {str, type(None)}:
            with contextlib.suppress(UnicodeError):  # half a surrogate pair
                return cls.of_arrow(pa.array(values, pa.string()), {})
        numbers: dict[Any, int] = {}
        distinct: list[Any] = []
        codes = []
        for value in values:
            kind = type(value)
            try:
                key = value if kind is str else (kind, repr(value) if kind is float else value)
                code = numbers.setdefault(key, len(distinct))
            except TypeError:  # of a list
                code = len(distinct)
            if code == len(distinct):
                distinct.append(value)
            codes.append(code)
        return cls(distinct, np.array(codes, dtype=np.int32))

    @classmethod
    def of_arrow(cls, column: pa.Array, defects: dict[int, str]) -> Self:
        """Of Arrow's values; notes the rows of those that Python cannot hold, and why."""
        is_dictionary = pa.types.is_dictionary(column.type)
        if not any(is_kind(column.type.value_type if is_dictionary else column.type) for is_kind in _CODED):
            return cls.of_values(python_values(column, defects))
        plain = column.dictionary_decode() if is_dictionary else column
        coded = pc.dictionary_encode(plain, null_encoding="encode")
        codes = coded.indices.to_numpy()
        of_distinct: dict[int, str] = {}
        values = python_values(coded.dictionary, of_distinct)
        for row in np.flatnonzero(np.isin(codes, list(of_distinct))).tolist():
            defects.setdefault(row, of_distinct[codes[row]])
        return cls(values, codes)

    def __getitem__(self, row: Any) -> Any:
        return self.values[self.codes[row]]

    def parsed(self, parse: Callable[[Any], Any]) -> Parsed:
        """The column's meanings; `parse` raises Defect for a value that has none."""
        meanings, defects = list[Any](), dict[int, Defect]()
        for value in self.values:
            try:
                meanings.append(parse(value))
            except Defect as defect:
                defects[len(meanings)] = defect.untraced()
                meanings.append(None)
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

    def without(self, places: Collection[int]) -> Self:
        """A batch that was read as columns, less the rows at these places."""
        keep = np.setdiff1d(np.arange(len(self.lines)), list(places))
        columns = {name: column._replace(codes=column.codes[keep]) for name, column in self.columns.items()}
        return self._replace(lines=self.lines[keep], columns=columns)


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
