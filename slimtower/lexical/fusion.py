"""Fusion: the hits of a dense and of a lexical search become one list.

Lists hold what each search found best; a document that only one of them holds counts as nothing in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from slimtower.common.settings import Strict


class _Settings(Strict):
    """What a fusion is; it lies in manifests. Each list is cut to its first `depth` hits."""

    depth: int = Field(ge=1)


class ReciprocalRank(_Settings):
    """Sum over lists of 1 / (constant + rank), ranks from 1; a list adds nothing to what it lacks.

    Cormack, Clarke and Buettcher 2009, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods", section 2; they found that the constant matters little.
    """

    kind: Literal["reciprocal_rank"] = "reciprocal_rank"
    constant: int = Field(default=60, ge=0)

    def fused(self, pool: "Pool") -> np.ndarray:
        """Fused scores `(documents,)`. Of equal scores of a list the first document ranks first."""
        total = np.zeros(len(pool.ids))
        for row in pool.scores:
            order = np.argsort(-row, kind="stable")[: int(np.isfinite(row).sum())]
            total[order] += 1 / (self.constant + np.arange(1, len(order) + 1))
        return total

    def __str__(self) -> str:
        return f"reciprocal ranks of {self.depth} hits each"


class WeightedSum(_Settings):
    """weight * dense + (1 - weight) * lexical, both normalised.

    The convex combination of Bruch, Gai and Ingber 2023, "An Analysis of Fusion Functions for Hybrid Retrieval", Eq. 2
    and 3; CombSUM of Fox and Shaw 1994 for equal weights.
    """

    kind: Literal["weighted_sum"] = "weighted_sum"
    weight: float = Field(ge=0, le=1)
    normalisation: Literal["min_max"] = "min_max"

    def fused(self, pool: "Pool") -> np.ndarray:
        dense, lexical = pool.normalised
        return self.weight * dense + (1 - self.weight) * lexical

    def __str__(self) -> str:
        return f"{self.weight:.1f} dense + {1 - self.weight:.1f} BM25, min-max over {self.depth} hits each"


AnyFusion = ReciprocalRank | WeightedSum
Fusion = Annotated[AnyFusion, Field(discriminator="kind")]  # as a field of a manifest


@dataclass
class Pool:
    """Documents of some lists, ids descending, and their scores `(lists, documents)`, -inf where a list lacks one."""

    ids: list[str]
    scores: np.ndarray

    @cached_property
    def normalised(self) -> list[np.ndarray]:
        """`min_max` of each list's scores."""
        return [min_max(scores) for scores in self.scores]


def pooled(lists: Sequence[tuple[np.ndarray, Sequence[str]]], depth: int) -> Pool:
    """The union of the first `depth` hits of each list of scores and ids, which are best first."""
    cut = [(scores[:depth], list(ids[:depth])) for scores, ids in lists]
    ids = sorted({doc for _, doc_ids in cut for doc in doc_ids}, reverse=True)
    column = {doc: at for at, doc in enumerate(ids)}
    scores = np.full((len(cut), len(ids)), -np.inf)
    for row, (values, doc_ids) in zip(scores, cut, strict=True):
        row[[column[doc] for doc in doc_ids]] = values
    return Pool(ids, scores)


def min_max(scores: np.ndarray) -> np.ndarray:
    """(s - min) / (max - min) of a list's scores `(documents,)`; 0 where it lacks one (-inf), 1 where all are equal."""
    is_hit = np.isfinite(scores)
    if not is_hit.any():
        return np.zeros_like(scores)
    low, high = scores[is_hit].min(), scores[is_hit].max()
    normalised = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return np.where(is_hit, normalised, 0.0)


def fuse(pool: Pool, fusion: AnyFusion, k: int) -> tuple[np.ndarray, list[str]]:
    """The best k documents of a pool of two lists: float32 scores and ids, in trec_eval's order.

    Equal scores, as float32, are ordered by id, descending. There are no more documents than the lists hold together.
    """
    scores = fusion.fused(pool).astype(np.float32)
    best = np.argsort(-scores, kind="stable")[:k]  # ids are descending
    return scores[best], [pool.ids[column] for column in best.tolist()]
