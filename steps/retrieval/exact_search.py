"""Exact search by inner product over vectors that need not fit into memory."""

import faiss
import numpy as np
import torch

_DOCUMENTS, _QUERIES = 65_536, 1024  # of which all scores are in a GPU's memory at once


def best_documents(
    queries: np.ndarray,
    documents: np.ndarray,
    count: int,
    rows: np.ndarray | None = None,
    *,
    cosine: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, float32, and rows, int64, of the documents with the largest inner products, best first: `(n, count)`.

    queries `(n, dim)`; documents `(m, dim)`, or a memory map, are read once, a block at a time; with `cosine` they
    count as if they had the length 1. `rows`: those that are searched, None = all. Fewer documents give fewer columns;
    what is no number has the row -1.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    columns = min(count, len(searched))
    if not len(queries) or not columns:
        return np.zeros((len(queries), columns), dtype=np.float32), np.zeros((len(queries), columns), dtype=np.int64)
    query_vectors = np.ascontiguousarray(queries, dtype=np.float32)
    heap = faiss.ResultHeap(len(queries), columns, keep_max=True)
    for start in range(0, len(searched), _DOCUMENTS):
        block = searched[start : start + _DOCUMENTS]
        vectors = np.array(documents[block], dtype=np.float32)
        if cosine:
            faiss.normalize_L2(vectors)
        if torch.cuda.is_available():
            scores, positions = _best_on_gpu(query_vectors, vectors, min(count, len(block)))
        else:
            scores, positions = faiss.knn(
                query_vectors, vectors, min(count, len(block)), metric=faiss.METRIC_INNER_PRODUCT
            )
        heap.add_result(scores, np.where(positions < 0, -1, block[positions]))
    heap.finalize()
    return heap.D, heap.I


def _best_on_gpu(queries: np.ndarray, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and positions of the `count` best vectors of each query, by torch, which sees a GPU without faiss-gpu."""
    there = torch.from_numpy(vectors).cuda()
    batches = torch.from_numpy(queries).cuda().split(_QUERIES)
    best = [(batch @ there.T).topk(count) for batch in batches]
    scores, positions = (torch.cat([top[part] for top in best]).cpu().numpy() for part in (0, 1))
    return scores, positions
