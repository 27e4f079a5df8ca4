"""Which of the present documents an earlier run has seen."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Match:
    """`rows`: each present document's previous row, -1 if it is new or changed; `previous_count`: documents before."""

    rows: np.ndarray
    previous_count: int

    @property
    def added(self) -> int:
        """Documents that are new or changed."""
        return int((self.rows < 0).sum())

    @property
    def removed(self) -> int:
        """Documents of before that are gone or changed."""
        return self.previous_count - int((self.rows >= 0).sum())

    @property
    def exchanged(self) -> int:
        """Vectors that come or go; one that changed counts once."""
        return max(self.added, self.removed)

    def unchanged(self) -> np.ndarray:
        """Present rows of the documents that were there before, with the same vector."""
        return np.flatnonzero(self.rows >= 0)

    def new(self) -> np.ndarray:
        """Present rows of the documents that are new or changed."""
        return np.flatnonzero(self.rows < 0)

    def moved(self) -> np.ndarray:
        """For each row of before its present row, or -1."""
        present_rows = np.full(self.previous_count, -1, dtype=np.int64)
        unchanged = self.unchanged()
        present_rows[self.rows[unchanged]] = unchanged
        return present_rows

    def nothing_new(self) -> bool:
        """Whether the same documents are in the same order."""
        return self.removed == 0 and np.array_equal(self.rows, np.arange(len(self.rows)))


def match(before_ids: pa.ChunkedArray, before: np.ndarray, doc_ids: pa.ChunkedArray, digests: np.ndarray) -> Match:
    """Match documents by id and vector digest (uint64)."""
    if not len(before):
        return Match(np.full(len(digests), -1, dtype=np.int64), 0)
    rows = pc.fill_null(pc.index_in(doc_ids, value_set=before_ids), -1).to_numpy().astype(np.int64)
    rows[before[rows] != digests] = -1
    return Match(rows, len(before))
