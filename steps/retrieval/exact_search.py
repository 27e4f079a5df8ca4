"""Exact search by inner product over vectors that need not fit into memory."""

import numpy as np
import torch

_DOCUMENTS, _QUERIES = 16_384, 4096  # of which all scores are in memory at once


def best_documents(
    queries: np.ndarray, documents: np.ndarray, count: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, float32, and rows, int64, of the `count` documents with the largest inner products, best first.

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
