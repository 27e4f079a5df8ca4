"""The space of a tower's queries: whose neighbours they are, how long they are, and how much all point one way."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from steps.core.cosines import cosines
from steps.evaluate.closeness import overlaps
from steps.evaluate.geometry import PAIRS, draw_pairs

NEIGHBOURS = 10
_BLOCK = 1024  # queries compared with all others at once


@dataclass(frozen=True)
class Space:
    """The queries of one data set by one tower.

    `norm_mean`, `norm_std`: of their lengths. `anisotropy`: mean cosine of random pairs, 0 = spread evenly, 1 = all
    alike (Ethayarajh 2019, How Contextual are Contextualized Word Representations); None with one query.
    `documents_kept`, `queries_kept`: mean share of the teacher's ten nearest documents, and of its ten nearest other
    queries, that are among the tower's; None of the teacher itself, the second also with ten others or
    fewer.
    """

    norm_mean: float
    norm_std: float
    anisotropy: float | None = None
    documents_kept: float | None = None
    queries_kept: float | None = None

    def as_dict(self) -> dict[str, float]:
        """Field name -> value of those there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def measure_space(
    vectors: np.ndarray,
    seed: int,
    teacher: np.ndarray | None = None,
    nearest: Sequence[Sequence[str]] = (),
    hits: Sequence[Sequence[str]] = (),
) -> Space:
    """Of embeddings of the same queries, `(queries, dim)`.

    A student's come with the teacher's, and with the nearest documents of each query, ids by the teacher and by it.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    pairs = draw_pairs(len(vectors), PAIRS, seed)
    alike = float(cosines(vectors[pairs[:, 0]], vectors[pairs[:, 1]]).mean()) if len(pairs) else None
    space = Space(float(lengths.mean()), float(lengths.std()), alike)
    if teacher is None:
        return space
    queries_kept = None
    if len(vectors) > NEIGHBOURS + 1:
        queries_kept = float(overlaps(neighbours(teacher).tolist(), neighbours(vectors).tolist()).mean())
    return Space(space.norm_mean, space.norm_std, alike, float(overlaps(nearest, hits).mean()), queries_kept)


def neighbours(vectors: np.ndarray) -> np.ndarray:
    """Rows of the NEIGHBOURS others with the greatest cosine of each row; `vectors` has more rows."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    best = []
    for start in range(0, len(unit), _BLOCK):
        similar = unit[start : start + _BLOCK] @ unit.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        best.append(np.argpartition(-similar, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS])
    return np.concatenate(best)
