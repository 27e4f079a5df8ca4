"""Exact search by inner product over vectors that need not fit into memory."""

import faiss
import numpy as np
import torch

_DOCUMENTS, _QUERIES = 16_384, 4096  # of which all scores are in memory at once
_AT_ONCE = 50_000  # documents that faiss searches as one


def nearest_rows(
    queries: np.ndarray, documents: np.ndarray, count: int, rows: np.ndarray | None = None, *, cosine: bool
) -> np.ndarray:
    """Rows of the `count` documents most like each query by cosine or inner product, best first: `(n, count)`.

    queries `(n, dim)`; documents `(m, dim)`, of which `rows` are searched. faiss searches up to 50,000 at once.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    if len(searched) > _AT_ONCE:
        query_vectors = np.ascontiguousarray(queries, dtype=np.float32)
        return best_documents(query_vectors, documents, count, searched, cosine=cosine)[1]
    vectors = np.array(documents[searched], dtype=np.float32)
    if cosine:
        faiss.normalize_L2(vectors)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    best = np.zeros((len(queries), count), dtype=np.int64)
    for start in range(0, len(queries), _QUERIES):
        query_vectors = np.ascontiguousarray(queries[start : start + _QUERIES], dtype=np.float32)
        best[start : start + _QUERIES] = searched[index.search(query_vectors, count)[1]]
    return best


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
    count as if they had the length 1. `rows`: those that are searched, None = all. Fewer documents give fewer columns.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    device = "cuda" if torch.cuda.is_available() else "cpu"
    columns = min(count, len(searched))
    scores = np.zeros((len(queries), columns), dtype=np.float32)
    best_rows = np.zeros((len(queries), columns), dtype=np.int64)
    for start in range(0, len(searched), _DOCUMENTS):
        block = searched[start : start + _DOCUMENTS]
        vectors = torch.from_numpy(np.asarray(documents[block])).to(device, torch.float32)
        if cosine:
            vectors = torch.nn.functional.normalize(vectors)
        block_rows = torch.from_numpy(block).to(device)
        for first in range(0, len(queries), _QUERIES):
            batch = slice(first, first + _QUERIES)
            filled = min(start, columns)  # columns that are filled
            query_vectors = torch.from_numpy(queries[batch]).to(vectors)
            best = (query_vectors @ vectors.T).topk(min(count, len(block)))
            together = torch.cat([torch.from_numpy(scores[batch, :filled]).to(vectors), best.values], dim=1)
            earlier = torch.from_numpy(best_rows[batch, :filled]).to(device)
            rows_of = torch.cat([earlier, block_rows[best.indices]], dim=1)
            top, order = together.topk(min(columns, together.shape[1]))
            scores[batch, : top.shape[1]] = top.cpu().numpy()
            best_rows[batch, : top.shape[1]] = rows_of.gather(1, order).cpu().numpy()
    return scores, best_rows
