"""Cosine similarity of embeddings, row by row."""

import numpy as np


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine of each row of `one` `(n, dim)` with the same row of `other`, computed in float64: `(n,)`.

    1 where both rows are zero, 0 where one is; NaN where a row holds NaN. ValueError when the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"rows of {one.shape} and {other.shape} do not match")
    left, right = (np.sqrt(_products(each, each)) for each in (one, other))
    lengths = left * right
    both_zero = (left == 0) & (right == 0)
    return np.where(both_zero, 1.0, _products(one, other) / np.where(lengths == 0, 1.0, lengths))


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Inner products of matching rows, without a float64 copy of either."""
    products: np.ndarray = np.einsum("ij,ij->i", one, other, dtype=np.float64)
    return products
