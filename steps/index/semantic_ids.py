"""Semantic IDs: a document as a short sequence of codes, coarse to fine, by residual k-means.

Level l holds the nearest of its centroids to what levels 1 to l - 1 left over (Rajput et al. 2023, Recommender Systems
with Generative Retrieval, section 3.1, with k-means in place of a trained RQ-VAE).
"""

from dataclasses import dataclass

import faiss
import numpy as np

from steps.index.factories import POINTS_A_CENTROID
from steps.index.vectors import Vectors

ITERATIONS = 20


@dataclass(frozen=True)
class SemanticIds:
    """`codes`: int16 `(documents, levels)`; `centroids`: how many different codes a level has.

    `errors`: for each level the mean squared residual, relative to the vectors' mean squared norm.
    """

    codes: np.ndarray
    errors: list[float]
    centroids: int

    def distinct_share(self) -> float:
        """Share of different IDs among the documents; 1 = every document has its own."""
        return len(np.unique(self.codes, axis=0)) / len(self.codes)


def codebooks(sample: np.ndarray, levels: int, codes: int, seed: int) -> list[np.ndarray]:
    """Centroids `(codes, width)` of each level, from `(n, width)` vectors.

    There are at most as many codes as leave 39 vectors a centroid, below which faiss calls k-means badly trained.
    """
    centroids = max(1, min(codes, len(sample) // POINTS_A_CENTROID))
    residual = sample.astype(np.float32)
    books = []
    for level in range(levels):
        clustering = faiss.Kmeans(sample.shape[1], centroids, niter=ITERATIONS, seed=seed + level, gpu=False)
        clustering.train(residual)
        books.append(np.array(clustering.centroids))
        residual = residual - books[-1][_nearest(books[-1], residual)]
    return books


def semantic_ids(vectors: Vectors, books: list[np.ndarray]) -> SemanticIds:
    """Codes of every vector, and what each level leaves over."""
    codes = np.zeros((len(vectors), len(books)), dtype=np.int16)
    left, total, start = np.zeros(len(books)), 0.0, 0
    for residual in vectors.chunks():
        total += float(np.square(residual, dtype=np.float64).sum())
        for level, book in enumerate(books):
            nearest = _nearest(book, residual)
            codes[start : start + len(residual), level] = nearest
            residual = residual - book[nearest]
            left[level] += np.square(residual, dtype=np.float64).sum()
        start += len(residual)
    errors = [float(value / total) if total else 0.0 for value in left]
    return SemanticIds(codes, errors, len(books[0]) if books else 0)


def _nearest(book: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Row of the nearest centroid (squared distance) of each vector; the first of equally near ones."""
    index = faiss.IndexFlatL2(book.shape[1])
    index.add(np.ascontiguousarray(book))
    return index.search(np.ascontiguousarray(vectors), 1)[1][:, 0]
