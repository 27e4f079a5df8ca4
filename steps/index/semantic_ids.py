"""Semantic IDs: a document as a short sequence of codes, coarse to fine, by residual k-means.

Level l holds the nearest of its centroids to what levels 1 to l - 1 left over (Rajput et al. 2023, Recommender Systems
with Generative Retrieval, section 3.1, with k-means in place of a trained RQ-VAE).
"""

from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.index import gpu
from steps.index.gpu import C_INT
from steps.index.incremental import Match
from steps.index.inputs import Vectors
from steps.index.params import POINTS_A_CENTROID

ITERATIONS = 20


@dataclass(frozen=True)
class SemanticIds:
    """`books` `(levels, centroids, dim)`; `codes`: int16 `(documents, levels)`; `left`: squared residual after none,
    one, two and more levels, float32 `(documents, levels + 1)`."""

    books: np.ndarray
    codes: np.ndarray
    left: np.ndarray

    def errors(self) -> list[float]:
        """For each level the mean squared residual, relative to the vectors' mean squared norm."""
        total, *residuals = self.left.sum(axis=0, dtype=np.float64)
        return [float(value / total) if total else 0.0 for value in residuals]

    def distinct_share(self) -> float:
        """Share of different IDs among the documents; 1 = every document has its own."""
        order = self.codes[np.lexsort(self.codes.T)]
        return float(1 + (order[1:] != order[:-1]).any(axis=1).sum()) / len(order)

    def write(self, path: Path, doc_ids: pa.ChunkedArray) -> None:
        """Write the table of doc_id, level_1 and so on (int16)."""
        columns = {f"level_{level + 1}": pa.array(codes) for level, codes in enumerate(self.codes.T)}
        pq.write_table(pa.table({"doc_id": doc_ids, **columns}), path, use_dictionary=False)


def codebooks(sample: np.ndarray, levels: int, codes: int, seed: int) -> np.ndarray:
    """Centroids of each level `(levels, codes, dim)` from vectors `(n, dim)`; fewer codes if n / 39 is less."""
    centroids = max(1, min(codes, len(sample) // POINTS_A_CENTROID))
    residual = sample.astype(np.float32)
    books = np.empty((levels, centroids, sample.shape[1]), dtype=np.float32)
    for level in range(levels):
        level_seed = (seed + level) % C_INT
        clustering = faiss.Kmeans(sample.shape[1], centroids, niter=ITERATIONS, seed=level_seed, gpu=gpu.seen())
        with gpu.memory():
            clustering.train(residual)
        books[level] = clustering.centroids
        residual = residual - books[level][_nearest(books[level], residual)]
    return books


def semantic_ids(vectors: Vectors, books: np.ndarray) -> SemanticIds:
    """Codes of every vector, and what each level leaves over."""
    empty = SemanticIds(books, np.empty((0, len(books)), np.int16), np.empty((0, len(books) + 1), np.float32))
    return updated_ids(empty, Match(np.full(len(vectors), -1), 0), vectors)


def updated_ids(before: SemanticIds, match: Match, vectors: Vectors) -> SemanticIds:
    """The same with the codebooks and codes of before: only new vectors are looked at."""
    unchanged = match.unchanged()
    codes = np.zeros((len(vectors), before.codes.shape[1]), dtype=np.int16)
    residuals = np.zeros((len(vectors), before.left.shape[1]), dtype=np.float32)
    codes[unchanged], residuals[unchanged] = before.codes[match.rows[unchanged]], before.left[match.rows[unchanged]]
    for chunk_rows, residual in vectors.at(match.new()):
        residuals[chunk_rows, 0] = np.square(residual).sum(axis=1)
        for level, book in enumerate(before.books):
            nearest = _nearest(book, residual)
            residual = residual - book[nearest]
            codes[chunk_rows, level] = nearest
            residuals[chunk_rows, level + 1] = np.square(residual).sum(axis=1)
    return SemanticIds(before.books, codes, residuals)


def _nearest(book: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return gpu.knn(np.ascontiguousarray(vectors), book, 1, faiss.METRIC_L2)[1][:, 0]
