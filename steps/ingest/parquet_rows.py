"""Rows of a Parquet file as Python values; a value that Python cannot hold is the defect of its own row."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError

_BATCH_ROWS = 16_384
_UNREADABLE = (ValueError, ArithmeticError, LookupError, pa.ArrowException)


class ParquetRow(NamedTuple):
    """A row: its 1-based number, its values by column, and where one of them cannot be read the reason."""

    line: int
    values: dict[str, Any]
    defect: str


def parquet_rows(path: Path, names: Mapping[str, str], check: Callable[[list[str]], None]) -> Iterator[ParquetRow]:
    """Yield the rows with the columns of `names`, ours: theirs; `check`, which may fill it, gets all names of the file.

    A date that no calendar of Python's has is given as its number, text that is not UTF-8 with marks for what is not.
    Raises UserError for a file that is damaged or no Parquet.
    """
    lines = count(1)
    try:
        with pq.ParquetFile(path) as file:
            check(file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH_ROWS, columns=sorted({*names.values()})):
                defects: dict[int, str] = {}
                values = [_values(batch.column(theirs), defects) for theirs in names.values()]
                for at in range(batch.num_rows):
                    row = {ours: column[at] for ours, column in zip(names, values, strict=True)}
                    yield ParquetRow(next(lines), row, defects.get(at, ""))
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read ({error}); write or fetch it again") from None


def _values(column: pa.Array, defects: dict[int, str]) -> list[Any]:
    """A column's values; notes the places of those that cannot be read, and why."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's times have no nanoseconds
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except _UNREADABLE:
        return [_value(scalar, at, defects) for at, scalar in enumerate(column)]
    return values


def _value(scalar: pa.Scalar, at: int, defects: dict[int, str]) -> Any:
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
