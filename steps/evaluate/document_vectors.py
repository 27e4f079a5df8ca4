"""Documents as the exact index of a release holds them."""

from collections.abc import Iterable

import numpy as np

from slimtower.serving.index_files import shards_of
from slimtower.serving.release import Release


def document_rows(release: Release, dataset: str, doc_ids: Iterable[str]) -> np.ndarray:
    """Rows of documents in the indexes of a data set, int64; -1 for one that the release does not hold."""
    ids = list(doc_ids)
    unique_ids = set(ids)
    rows = {doc_id: row for row, doc_id in enumerate(release.documents(dataset).ids) if doc_id in unique_ids}
    return np.array([rows.get(doc_id, -1) for doc_id in ids], dtype=np.int64)


def document_vectors(release: Release, dataset: str, rows: np.ndarray) -> np.ndarray:
    """Vectors of these rows of the exact index, float32 `(rows, dim)`."""
    index = release.index(dataset, "flat")
    vectors, start = np.empty((len(rows), index.d), dtype=np.float32), 0
    for shard in shards_of(index):
        in_shard = np.flatnonzero((rows >= start) & (rows < start + shard.ntotal))
        if len(in_shard):
            vectors[in_shard] = shard.reconstruct_batch(rows[in_shard] - start)
        start += shard.ntotal
    return vectors
