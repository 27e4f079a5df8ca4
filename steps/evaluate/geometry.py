"""How close a student's queries lie to the teacher's, and how it moves pairs of them (EmbedDistill, Fig. 4).

The bound of its Proposition 1 is in proposition.py.

Students embed as they serve. Teacher and student have as many dimensions as the index.
"""

from dataclasses import dataclass

import numpy as np

PAIRS = 20_000  # pairs of queries of a data set that are looked at; all where there are no more
_UNIT = 1e-3  # how far from 1 the length of a normalised embedding may be


@dataclass(frozen=True)
class Geometry:
    """One student on the test queries of one data set.

    `query_term`: mean L2 distance, not squared, to the teacher's embeddings. `differences` `(pairs,)` as
    `pair_differences` gives them.
    """

    query_term: float
    differences: np.ndarray

    def as_dict(self) -> dict[str, float | None]:
        """Key of metrics.json -> value; those of the pairs are None where there is one query and no pair."""
        named: dict[str, float | None] = dict.fromkeys(("pairs_mean", "pairs_p05", "pairs_p50", "pairs_p95"))
        if len(self.differences):
            quantiles = np.quantile(self.differences, [0.05, 0.5, 0.95])
            named = dict(zip(named, (float(self.differences.mean()), *quantiles.tolist()), strict=True))
        return {"query_term": self.query_term} | named


def measure_geometry(teacher: np.ndarray, student: np.ndarray, seed: int) -> Geometry:
    """Of the embeddings of one data set's test queries, `(queries, dim)` each."""
    theirs, ours = comparable(teacher, student)
    differences = pair_differences(theirs, ours, draw_pairs(len(theirs), PAIRS, seed))
    return Geometry(query_term(theirs, ours), differences)


def query_term(teacher: np.ndarray, student: np.ndarray) -> float:
    """E||e_q^s - e_q^t|| over queries, L2 and not squared; embeddings `(queries, dim)` (Proposition 1)."""
    return float(np.linalg.norm(student - teacher, axis=1).mean(dtype=np.float64))


def pair_differences(teacher: np.ndarray, student: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """||e_q^t - e_q'^t|| - ||e_q^s - e_q'^s|| `(pairs,)` for rows q, q' in `pairs` `(pairs, 2)` (Fig. 4).

    Embeddings `(queries, dim)`. Above 0 where the student brings two queries closer together than the teacher does.
    """
    return _lengths(teacher, pairs) - _lengths(student, pairs)


def draw_pairs(count: int, limit: int, seed: int) -> np.ndarray:
    """Pairs of different rows below `count`, int64 `(pairs, 2)`: all, or `limit` drawn alike where there are more."""
    if count * (count - 1) // 2 <= limit:
        return np.stack(np.triu_indices(count, 1), axis=1)
    generator = np.random.default_rng(seed)
    first = generator.integers(0, count, limit)
    return np.stack([first, (first + generator.integers(1, count, limit)) % count], axis=1)


def comparable(teacher: np.ndarray, student: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings `(queries, dim)` of both, at unit length where all of the teacher's are.

    A release normalises where its teacher does. But an index of fewer dimensions normalises what it cuts from a teacher
    that does not, and then the student's may have any length.
    """
    if not np.allclose(np.linalg.norm(teacher, axis=1), 1, atol=_UNIT):
        return teacher, student
    return _unit(teacher), _unit(student)


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def _lengths(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors[pairs[:, 0]] - vectors[pairs[:, 1]], axis=1)
