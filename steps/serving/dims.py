"""Embeddings cut to their first dimensions."""

import numpy as np


def cut(vectors: np.ndarray, width: int) -> np.ndarray:
    """The first `width` dimensions of `(n, dim)` vectors as float32, renormalised when that drops any.

    Matryoshka embeddings (Kusupati et al. 2022) are trained to be used like that.
    """
    kept = np.ascontiguousarray(vectors[:, :width], dtype=np.float32)
    if width == vectors.shape[1]:
        return kept
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return kept / np.where(lengths > 0, lengths, 1)
