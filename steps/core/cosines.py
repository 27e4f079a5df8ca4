"""Cosine similarity of embeddings, row by row."""

import numpy as np


def cosines(vectors: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Cosine of each row of `vectors` `(n, dim)` with the same row of `references`, computed in float64: `(n,)`.

    1 where both rows are zero, 0 where one is; NaN where a row holds NaN. ValueError when the shapes differ.
    """
    if vectors.shape != references.shape:
        raise ValueError(f"rows of {vectors.shape} and {references.shape} do not match")
    norms, reference_norms = (np.sqrt(_products(rows, rows)) for rows in (vectors, references))
    norm_products = norms * reference_norms
    both_zero = (norms == 0) & (reference_norms == 0)
    return np.where(both_zero, 1.0, _products(vectors, references) / np.where(norm_products == 0, 1.0, norm_products))


def _products(vectors: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Inner products of matching rows, without a float64 copy of either."""
    products: np.ndarray = np.einsum("ij,ij->i", vectors, references, dtype=np.float64)
    return products
