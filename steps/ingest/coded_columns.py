"""Large columns: of text that may be dictionaries, as a log's text is gigabytes; and of numbers that are added to."""

from array import array
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def coded(numbers: np.ndarray, texts: pa.Array) -> pa.DictionaryArray:
    """The column of `texts[numbers]`."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), texts)


def distinct(column: pa.ChunkedArray) -> int:
    """How many different texts the column has."""
    if not pa.types.is_dictionary(column.type):
        return int(pc.count_distinct(column).as_py())
    return int(pc.count_distinct(pa.array(codes(column))).as_py())


def codes(column: pa.ChunkedArray) -> np.ndarray:
    """A number of each text of a dictionary: int32 `(rows,)`, equal where the texts are."""
    indices = [chunk.indices.to_numpy() for chunk in column.unify_dictionaries().chunks]
    return np.concatenate([np.zeros(0, dtype=np.int32), *indices])


def among(column: pa.ChunkedArray, texts: Collection[str]) -> pa.ChunkedArray:
    """Whether each value of the column is one of the texts: bool."""
    values = pa.array(sorted(texts), pa.string())
    if not pa.types.is_dictionary(column.type):
        return pc.is_in(column, value_set=values)
    memberships = [pc.is_in(chunk.dictionary, value_set=values).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(memberships, pa.bool_())


def columns(codes: str) -> list[array]:
    """Columns of numbers in little memory, empty, each of a type as of `array`."""
    return [array(code) for code in codes]


def append(columns: Sequence[array], *values: float) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's function (Steele, Lea and Flood 2014) of each uint64: every bit depends on every bit of it."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
