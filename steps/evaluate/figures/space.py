"""The space of a tower's queries: whose neighbours they are, how long they are, and how much all point one way."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from steps.core.cosines import cosines
from steps.evaluate.figures.base import NEIGHBOURS, EvaluatedTower, Figure, Part, RenderContext, model_table, overlaps
from steps.evaluate.figures.geometry import PAIRS, draw_pairs, unit
from steps.evaluate.formatting import Block, percent
from steps.evaluate.systems import Student

_BLOCK = 1024  # queries compared with all others at once


class Neighbours(Figure):
    """`space.<set>.<model>` of metrics.json.

    `norm_mean`, `norm_std`: lengths of the query embeddings. `anisotropy`: mean cosine of random pairs, 0 = spread
    evenly, 1 = all alike (Ethayarajh 2019, How Contextual are Contextualized Word Representations); no key with one
    query. Of students `documents_kept`, `queries_kept`: mean share of the teacher's ten nearest documents, and of its
    ten nearest other test queries, that the student has too; no second key with ten others or fewer.
    """

    title = "Neighbours, lengths and spread"
    part: ClassVar[Part] = "distance"
    position = 3
    analysis = True

    def measure(self, evaluated: EvaluatedTower) -> dict[str, float]:
        """Of the teacher lengths and spread alone."""
        spread = lengths_and_spread(evaluated.vectors, evaluated.seed)
        if not isinstance(evaluated.tower, Student):
            return spread
        return spread | neighbours_kept(
            evaluated.teacher_vectors, evaluated.vectors, evaluated.teacher_hits, evaluated.hits
        )

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "The share of the teacher's ten nearest documents, and of its ten nearest other test queries, that a"
            " student keeps. The length of the query embeddings. The mean cosine of random pairs of queries: near 1 all"
            " embeddings point in one direction."
        )
        formats = dict.fromkeys(("documents_kept", "queries_kept"), percent)
        formats |= dict.fromkeys(("norm_mean", "norm_std", "anisotropy"), "{:.3f}".format)
        yield model_table(
            ["model", "documents kept", "queries kept", "length", "its deviation", "cosine of pairs"],
            value,
            lambda space: [formatted(space[key]) if key in space else "–" for key, formatted in formats.items()],
        )


def lengths_and_spread(vectors: np.ndarray, seed: int) -> dict[str, float]:
    """Of embeddings of queries, `(queries, dim)`."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    spread = {"norm_mean": float(lengths.mean()), "norm_std": float(lengths.std())}
    pairs = draw_pairs(len(vectors), PAIRS, seed)
    return spread | (
        {"anisotropy": float(cosines(vectors[pairs[:, 0]], vectors[pairs[:, 1]]).mean())} if len(pairs) else {}
    )


def neighbours_kept(
    teacher: np.ndarray, student: np.ndarray, nearest: Sequence[Sequence[str]], hits: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Of embeddings of the same queries, `(queries, dim)`, and ids of the nearest documents, by both."""
    shares = {"documents_kept": float(overlaps(nearest, hits).mean())}
    if len(student) > NEIGHBOURS + 1:
        shares["queries_kept"] = float(overlaps(neighbours(teacher).tolist(), neighbours(student).tolist()).mean())
    return shares


def neighbours(vectors: np.ndarray) -> np.ndarray:
    """Rows of the NEIGHBOURS others with the greatest cosine of each row; `vectors` has more rows."""
    directions, best = unit(vectors), []
    for start in range(0, len(directions), _BLOCK):
        similar = directions[start : start + _BLOCK] @ directions.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        best.append(np.argpartition(-similar, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS])
    return np.concatenate(best)
