"""What is scored: each text's nearest documents, and behind them known positives that are not among these.

A teacher that scores them is compared with the index's teacher, which found them: who orders them better?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steps.core.measures import ndcg_at_10
from steps.retrieval.score_shards import Compute, ScoreShards
from steps.training.comparison import SIGNIFICANT, p_of_gain

OBSERVED = ("judged", "click_one_hop", "given")  # sources of triplets that no ranker made, and nobody inferred
_FEWEST = 20  # queries of which a mean is worth a line


@dataclass(frozen=True)
class Lists:
    """The documents of each text; rows of documents throughout.

    `nearest` `(texts, k)`; `missed` `(n, 2)`: the position of a text and a positive of it, ascending.
    """

    texts: Sequence[str]
    nearest: np.ndarray
    missed: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """All documents, once, ascending."""
        return np.unique(np.concatenate([self.nearest.reshape(-1), self.missed[:, 1]]))

    def __len__(self) -> int:
        return int(self.nearest.size + len(self.missed))

    def pairs(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the texts from `start` on: positions of texts and rows of documents, list by list, `(pairs,)` each."""
        near, missed, positions = self._shard(start, stop)
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([near.reshape(-1), missed[:, 1]])[order]

    def get_or_compute(
        self, start: int, stop: int, rows: np.ndarray, shards: ScoreShards, compute: Compute
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `compute` makes of these texts' nearest documents, `(texts, k, ...)`, and of `pairs`, `(pairs, ...)`.

        It is given positions of documents in `rows`.
        """
        near, missed, positions = self._shard(start, stop)
        first = shards.get_or_compute(compute, list(self.texts[start:stop]), np.searchsorted(rows, near))
        values = first.reshape(near.size, *first.shape[2:])
        if not len(missed):
            return first, values
        texts = [self.texts[position] for position in missed[:, 0].tolist()]
        more = shards.get_or_compute(compute, texts, np.searchsorted(rows, missed[:, 1:]))[:, 0]
        return first, np.concatenate([values, more])[np.argsort(positions, kind="stable")]

    def _shard(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nearest documents, positives, and the positions of the texts of both, one after the other."""
        near = self.nearest[start:stop]
        missed = self.missed[slice(*np.searchsorted(self.missed[:, 0], [start, stop]))]
        repeated = np.repeat(np.arange(start, start + len(near)), near.shape[1])
        return near, missed, np.concatenate([repeated, missed[:, 0]])


def lists_of(
    texts: Sequence[str],
    nearest: np.ndarray,
    positives: Mapping[int, np.ndarray],
    chosen: np.ndarray,
    limit: int,
    seed: int,
) -> Lists:
    """Lists of the texts with these nearest documents, and at most `limit` positives, drawn by seed.

    `chosen`: rows of the texts, ascending, which are the keys of `positives`.
    """
    missed = [np.zeros((0, 2), dtype=np.int64)]
    for position in np.flatnonzero(np.isin(chosen, list(positives))).tolist():
        row = int(chosen[position])
        extra = np.setdiff1d(positives[row], nearest[position])
        if len(extra) > limit:
            extra = np.sort(np.random.default_rng((seed, 7, row)).choice(extra, limit, replace=False))
        missed.append(np.stack([np.full(len(extra), position), extra], axis=1).astype(np.int64))
    return Lists(texts, nearest, np.concatenate(missed))


@dataclass(frozen=True)
class Orders:
    """Mean nDCG@10 of both orders of the same lists, over training queries of which an answer is among them.

    A teacher that learned from these very queries looks better here than it is, be it this one or the index's.
    `p_worse`, `p_better`: of one-sided paired t-tests that the scoring teacher's is the lower, or the higher one.
    """

    queries: int
    index: float
    teacher: float
    p_worse: float
    p_better: float

    def describe(self, teacher: str) -> str:
        """One line; a WARNING if students that learn these scores may learn a worse order."""
        text = (
            f"nDCG@10 of the documents near {self.queries:,} training queries with a known answer: {self.teacher:.3f}"
            f" as {teacher} orders them, {self.index:.3f} in the order of the index's teacher"
        )
        if self.p_worse <= SIGNIFICANT:
            advice = "train it on more triplets or epochs, name a stronger one, or compare a student without them"
            return f"WARNING: {text}: students may lose by learning {teacher}'s scores; {advice}"
        return text if self.p_better <= SIGNIFICANT else f"{text}, which may be chance"


class OrderCheck:
    """Collects both orders, a shard of texts at a time.

    `nearest` `(texts, k)` are rows of documents, the nearest first; `answers` has rows of answers by a text's position.
    """

    def __init__(self, nearest: np.ndarray, answers: Mapping[int, np.ndarray]) -> None:
        self.nearest, self.answers, self._ndcgs = nearest, answers, list[np.ndarray]()

    def add(self, start: int, scores: np.ndarray) -> None:
        """Take the teacher's scores `(texts, k)` of the texts from `start` on."""
        positions = [
            position
            for position in range(start, start + len(scores))
            if position in self.answers and np.isin(self.answers[position], self.nearest[position]).any()
        ]
        if not positions:
            return
        names = [str(position) for position in positions]
        qrels = {str(position): dict.fromkeys(map(str, self.answers[position].tolist()), 1) for position in positions}
        documents = [list(map(str, self.nearest[position].tolist())) for position in positions]
        falling = [-np.arange(self.nearest.shape[1], dtype=np.float32)] * len(positions)
        orders = (falling, [scores[position - start] for position in positions])
        self._ndcgs.append(np.stack([ndcg_at_10(qrels, names, documents, values) for values in orders], axis=1))

    def orders(self) -> Orders | None:
        """Means of both orders; None of too few queries, or of lists of one document."""
        ndcgs = np.concatenate([np.zeros((0, 2)), *self._ndcgs])
        if len(ndcgs) < _FEWEST or self.nearest.shape[1] < 2:
            return None
        index, teacher = ndcgs.T
        worse, better = p_of_gain(teacher, index), p_of_gain(index, teacher)
        return Orders(len(ndcgs), float(index.mean()), float(teacher.mean()), worse, better)
