"""The exact best documents of the queries with which recall is measured, kept up to date."""

from dataclasses import dataclass
from hashlib import sha256

import faiss
import numpy as np

from steps.index.gpu import knn
from steps.index.matching import Match
from steps.index.vectors import Vectors

_EQUAL = 1e-5  # of a score, relative to its size


@dataclass(frozen=True)
class ExactTopK:
    """Rows (int64) and inner products (float32) of the best vectors of each query, best first: `(queries, k)` each."""

    rows: np.ndarray
    scores: np.ndarray


def exact_top(vectors: Vectors, queries: np.ndarray, k: int, candidates: np.ndarray | None = None) -> ExactTopK:
    """The k best vectors, of all or of the rows `candidates`, by a scan that holds one chunk; -1 fills up too few."""
    heap = faiss.ResultHeap(len(queries), k, keep_max=True)
    for chunk_rows, chunk in vectors.at(np.arange(len(vectors)) if candidates is None else candidates):
        scores, positions = knn(queries, chunk, min(k, len(chunk)), faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, chunk_rows[positions])
    heap.finalize()
    return ExactTopK(heap.I, heap.D)


def updated_top(before: ExactTopK, match: Match, vectors: Vectors, queries: np.ndarray) -> tuple[ExactTopK, int]:
    """The same over the present vectors, and how many queries had to be scanned for anew.

    Those that lost a hit see every vector again; the others only what is new.
    """
    k = before.rows.shape[1]
    rows, scores = match.moved()[before.rows], before.scores.copy()
    lost = np.flatnonzero((rows < 0).any(axis=1))
    intact = np.flatnonzero((rows >= 0).all(axis=1))
    if match.added and len(intact):
        heap = faiss.ResultHeap(len(intact), k, keep_max=True)
        for top in (ExactTopK(rows[intact], scores[intact]), exact_top(vectors, queries[intact], k, match.new())):
            heap.add_result(top.scores, top.rows)
        heap.finalize()
        rows[intact], scores[intact] = heap.I, heap.D
    if len(lost):
        top = exact_top(vectors, queries[lost], k)
        rows[lost], scores[lost] = top.rows, top.scores
    return ExactTopK(rows, scores), len(lost)


def best_rows(top: ExactTopK, k: int) -> np.ndarray:
    """Rows of the k best and of those that score as the k-th, such as copies of it; -1 for all others, the shape of
    `top`."""
    last = top.scores[:, min(k, top.scores.shape[1]) - 1][:, None]
    return np.where(top.scores >= last - _EQUAL * np.abs(last), top.rows, -1)


def queries_digest(queries: np.ndarray) -> str:
    """Tells one set of query vectors from another."""
    return sha256(repr(queries.shape).encode() + np.ascontiguousarray(queries).tobytes()).hexdigest()
