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

    queries `(n, dim)`; documents `(m, dim)`, of which `rows` are searched, None = all. Up to 50,000 faiss searches at
    once; more are read a block at a time.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    if len(searched) > _AT_ONCE:
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        return best_documents(asked, documents, count, searched, cosine=cosine)[1]
    vectors = np.array(documents[searched], dtype=np.float32)
    if cosine:
        faiss.normalize_L2(vectors)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    found = np.zeros((len(queries), count), dtype=np.int64)
    for start in range(0, len(queries), _QUERIES):
        asked = np.ascontiguousarray(queries[start : start + _QUERIES], dtype=np.float32)
        found[start : start + _QUERIES] = searched[index.search(asked, count)[1]]
    return found


def best_documents(
    queries: np.ndarray,
    documents: np.ndarray,
    count: int,
    rows: np.ndarray | None = None,
    *,
    cosine: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, float32, and rows, int64, of the `count` documents with the largest inner products, best first.

    With `cosine` documents count as if they had the length 1.

    queries `(n, dim)`; documents `(m, dim)`, which may be a memory map: it is read once, a block at a time. `rows`:
    those that are searched, None = all. Both results are `(n, count)`, or as many columns as there are documents.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    device = "cuda" if torch.cuda.is_available() else "cpu"
    columns = min(count, len(searched))
    scores = np.zeros((len(queries), columns), dtype=np.float32)
    found = np.zeros((len(queries), columns), dtype=np.int64)
    for start in range(0, len(searched), _DOCUMENTS):
        block = searched[start : start + _DOCUMENTS]
        vectors = torch.from_numpy(np.asarray(documents[block])).to(device, torch.float32)
        if cosine:
            vectors = torch.nn.functional.normalize(vectors)
        places = torch.from_numpy(block).to(device)
        for first in range(0, len(queries), _QUERIES):
            some = slice(first, first + _QUERIES)
            known = min(start, columns)  # columns that are filled
            asked = torch.from_numpy(queries[some]).to(vectors)
            best = (asked @ vectors.T).topk(min(count, len(block)))
            together = torch.cat([torch.from_numpy(scores[some, :known]).to(vectors), best.values], dim=1)
            rows_of = torch.cat([torch.from_numpy(found[some, :known]).to(device), places[best.indices]], dim=1)
            top, order = together.topk(min(columns, together.shape[1]))
            scores[some, : top.shape[1]] = top.cpu().numpy()
            found[some, : top.shape[1]] = rows_of.gather(1, order).cpu().numpy()
    return scores, found
