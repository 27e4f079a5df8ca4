"""Embeddings truncated to their first dimensions."""

import numpy as np


def truncate(vectors: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` dimensions `(n, dim)`, float32, renormalised if any go (Matryoshka; Kusupati et al. 2022)."""
    first = np.ascontiguousarray(vectors[:, :dim], dtype=np.float32)
    if dim == vectors.shape[1]:
        return first
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    return first / np.where(lengths > 0, lengths, 1)
