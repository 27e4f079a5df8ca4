"""Exact search by inner product over vectors that need not fit into memory."""

import numpy as np
import torch

_DOCUMENTS, _QUERIES = 16_384, 4096  # of which all scores are in memory at once


def best_documents(
    queries: np.ndarray, documents: np.ndarray, count: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, float32, and rows, int64, of the `count` documents with the largest inner products, best first.

    queries `(n, dim)`; documents `(m, dim)`, which may be a memory map: it is read a block at a time. `rows`: those
    that are searched, None = all. Both results are `(n, count)`, or as many columns as there are documents to search.
    """
    searched = np.arange(len(documents)) if rows is None else rows
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = [
        _of_block(torch.from_numpy(queries[start : start + _QUERIES]).to(device), documents, count, searched)
        for start in range(0, len(queries), _QUERIES)
    ]
    if not parts:
        columns = min(count, len(searched))
        return np.zeros((0, columns), dtype=np.float32), np.zeros((0, columns), dtype=np.int64)
    scores, found = (np.concatenate(column) for column in zip(*parts, strict=True))
    return scores, found


def _of_block(
    asked: torch.Tensor, documents: np.ndarray, count: int, searched: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows for some queries."""
    scores = asked.new_empty(len(asked), 0)
    found = torch.empty(len(asked), 0, dtype=torch.int64, device=asked.device)
    for start in range(0, len(searched), _DOCUMENTS):
        block = searched[start : start + _DOCUMENTS]
        vectors = torch.from_numpy(np.asarray(documents[block])).to(asked)
        best = (asked @ vectors.T).topk(min(count, len(block)))
        scores = torch.cat([scores, best.values], dim=1)
        found = torch.cat([found, torch.from_numpy(block).to(found)[best.indices]], dim=1)
        scores, order = scores.topk(min(count, scores.shape[1]))
        found = found.gather(1, order)
    return scores.cpu().numpy(), found.cpu().numpy()
