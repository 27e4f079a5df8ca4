"""Exact search by inner product over vectors that need not fit into memory."""

import faiss
import numpy as np

_DOCUMENTS = 100_000  # in memory at once
_QUERIES = 4096


def best_documents(queries: np.ndarray, documents: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores, float32, and rows, int64, of the `count` documents with the largest inner products, best first.

    queries `(n, dim)`; documents `(m, dim)`, which may be a memory map: it is read a block at a time. Both results are
    `(n, min(count, m))`; of equal scores the first row comes first.
    """
    count = min(count, len(documents))
    scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
    rows = np.full((len(queries), count), len(documents), dtype=np.int64)
    for first in range(0, len(documents) if count else 0, _DOCUMENTS):
        block = np.ascontiguousarray(documents[first : first + _DOCUMENTS], dtype=np.float32)
        index = faiss.IndexFlatIP(block.shape[1])
        index.add(block)
        for start in range(0, len(queries), _QUERIES):
            part = slice(start, start + _QUERIES)
            asked = np.ascontiguousarray(queries[part], dtype=np.float32)
            found, places = index.search(asked, min(count, len(block)))
            merged = np.hstack([scores[part], found]), np.hstack([rows[part], places + first])
            best = np.lexsort((merged[1], -merged[0]), axis=1)[:, :count]
            scores[part], rows[part] = (np.take_along_axis(each, best, axis=1) for each in merged)
    return scores, rows
