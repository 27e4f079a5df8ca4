"""Clustered unit vectors, and the default knobs of the stage `index`."""

from typing import Any

import numpy as np

from steps.index.inputs import Vectors
from steps.index.params import IndexParams
from steps.index.tuning import ExactTopK, Target

KNOBS: dict[str, Any] = {"kind": "ivfpq", "target_recall": 0.9, "seed": 3}


def index_params(**changes: Any) -> IndexParams:
    """The knobs with some values changed."""
    return IndexParams.model_validate(KNOBS | changes)


def clustered(count: int, dim: int = 32, seed: int = 0) -> np.ndarray:
    """`(count, dim)` float32 unit vectors around 40 centres."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(40, dim))
    vectors = centres[generator.integers(0, 40, count)] + 0.7 * generator.normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def all_of(matrix: np.ndarray) -> Vectors:
    """Every row with all its dimensions."""
    return Vectors(matrix, np.arange(len(matrix)), matrix.shape[1])


def exact_top(matrix: np.ndarray, queries: np.ndarray, k: int = 10) -> np.ndarray:
    """Rows of the k largest inner products in float64, best first."""
    return np.argsort(-(queries.astype(np.float64) @ matrix.astype(np.float64).T), axis=1, kind="stable")[:, :k]


def target_of(matrix: np.ndarray, queries: np.ndarray, k: int = 10) -> Target:
    """What a search among the rows should find."""
    rows = exact_top(matrix, queries, k)
    return Target.of(queries, all_of(matrix), ExactTopK(rows, np.einsum("qd,qkd->qk", queries, matrix[rows])))
