"""How close a student's queries lie to the teacher's, and how it moves pairs of them (EmbedDistill, Fig. 4).

Students embed as they serve. Teacher and student have as many dimensions as the index.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from steps.evaluate.drawing import NARROW, WIDE, draw_histograms
from steps.evaluate.figures.base import EvaluatedTower, Figure, Measured, Part, RenderContext, model_table
from steps.evaluate.formatting import Block, Drawing
from steps.evaluate.systems import Student

PAIRS = 20_000  # pairs of queries of a data set that are looked at; all where there are no more
_UNIT = 1e-3  # how far from 1 the length of a normalised embedding may be


class DistanceToTheTeacher(Figure):
    """`geometry.<set>.<student>` of metrics.json.

    `query_term`: mean L2 distance of the test queries' embeddings to the teacher's. `pairs_mean`, `pairs_p05`,
    `pairs_p50`, `pairs_p95`: over pairs of test queries, their distance by the teacher less that by the student; null
    where there is one query.
    """

    title = "Distance to the teacher"
    part: ClassVar[Part] = "distance"
    position = 1
    analysis = True

    def measure(self, evaluated: EvaluatedTower) -> dict[str, Any] | None:
        """`query_term`, and `differences` of all pairs."""
        if not isinstance(evaluated.tower, Student):
            return None
        theirs, ours = comparable(evaluated.teacher_vectors, evaluated.vectors)
        query_term = np.linalg.norm(ours - theirs, axis=1).mean(dtype=np.float64)  # Proposition 1: L2, not squared
        pairs = draw_pairs(len(theirs), PAIRS, evaluated.seed)
        differences = _distances(theirs, pairs) - _distances(ours, pairs)
        return {"query_term": float(query_term), "differences": differences.tolist()}

    def merge(self, measured: Measured, values: Mapping[str, Mapping[str, np.ndarray]], seed: int) -> dict[str, Any]:
        """Quantiles in place of all pairs."""
        merged = super().merge(measured, values, seed)
        return {
            dataset: {model: summary(distances) for model, distances in row.items()} for dataset, row in merged.items()
        }

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "How far a student places queries from where the teacher places them. Training lowers this distance. The"
            " documents are the teacher's own."
        )
        keys = ("pairs_mean", "pairs_p05", "pairs_p50", "pairs_p95")
        yield model_table(
            ["student", "distance", "pairs: mean", "5\u00a0%", "median", "95\u00a0%"],
            value,
            lambda distances: [
                f"{distances['query_term']:.3f}",
                *("–" if distances[key] is None else f"{distances[key]:+.3f}" for key in keys),
            ],
        )
        yield (
            "The pairs are pairs of test queries: their distance by the teacher less their distance by the student, as"
            " in Fig. 4 of [EmbedDistill](https://arxiv.org/abs/2301.12005) (Kim et al., 2023). At 0 the student keeps"
            " every distance. To the right it brings queries closer together than the teacher does; to the left it"
            " moves them apart."
        )
        pairs = {
            student: np.concatenate([np.array(distances["differences"]) for distances in by_set.values()])
            for student, by_set in context.measured.items()
        }
        label = "distance by the teacher less distance by the student"
        yield Drawing(
            draw_histograms(pairs, label, WIDE),
            draw_histograms(pairs, label, NARROW),
            f"All data sets, each with at most {PAIRS:,} pairs of queries; the bars at both ends hold all values beyond"
            " them.",
        )


def summary(distances: Mapping[str, Any]) -> dict[str, float | None]:
    """Distance, and mean and quantiles of the differences; None where there is one query and no pair."""
    differences = np.array(distances["differences"])
    named: dict[str, float | None] = dict.fromkeys(("pairs_mean", "pairs_p05", "pairs_p50", "pairs_p95"))
    if len(differences):
        quantiles = np.quantile(differences, [0.05, 0.5, 0.95])
        named = dict(zip(named, (float(differences.mean()), *quantiles.tolist()), strict=True))
    return {"query_term": distances["query_term"]} | named


def draw_pairs(count: int, limit: int, seed: int) -> np.ndarray:
    """Pairs of different rows below `count`, int64 `(pairs, 2)`: all, or `limit` drawn alike where there are more."""
    if count * (count - 1) // 2 <= limit:
        return np.stack(np.triu_indices(count, 1), axis=1)
    generator = np.random.default_rng(seed)
    first = generator.integers(0, count, limit)
    return np.stack([first, (first + generator.integers(1, count, limit)) % count], axis=1)


def comparable(teacher: np.ndarray, student: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings `(queries, dim)` of both, at unit length where all of the teacher's are.

    An index of fewer dimensions may normalise what a teacher does not; the student's may then have any length.
    """
    if not np.allclose(np.linalg.norm(teacher, axis=1), 1, atol=_UNIT):
        return teacher, student
    return unit(teacher), unit(student)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors `(n, dim)` at length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def _distances(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors[pairs[:, 0]] - vectors[pairs[:, 1]], axis=1)
