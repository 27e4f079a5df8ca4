"""Impressions of a search log that were delivered more than once."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.ingest.coded_columns import codes

REPEATED = "repeated"
_MIXES = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64


def without_repeats(log: pa.Table) -> np.ndarray:
    """Which impressions count, `(impressions,)`: of those equal in every column the first.

    For a log with sessions of its own: there, what is equal to the second is one impression that was delivered again.
    """
    columns = [_numbers(column) for column in log.columns]
    mixed = np.zeros(log.num_rows, dtype=np.uint64)
    for column in columns:
        mixed = _mixed(mixed ^ column.astype(np.int64).view(np.uint64))
    order = np.argsort(mixed, kind="stable")
    again = mixed[order[1:]] == mixed[order[:-1]]
    for column in columns:
        again &= column[order[1:]] == column[order[:-1]]
    is_first = np.ones(log.num_rows, dtype=bool)
    is_first[order[1:][again]] = False
    return is_first


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column as whole numbers."""
    if pa.types.is_dictionary(column.type):
        return codes(column)
    return pc.cast(column, pa.int64()).to_numpy()


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's function of each number: every bit of the result depends on every bit of it."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * _MIXES[0]
    values = (values ^ (values >> np.uint64(27))) * _MIXES[1]
    return values ^ (values >> np.uint64(31))
