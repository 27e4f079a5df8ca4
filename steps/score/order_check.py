"""Does a teacher order the documents that the index's teacher finds better than that one does?"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steps.core.measures import ndcg_at_10
from steps.training.comparison import SIGNIFICANT, p_of_gain

OBSERVED = ("judged", "click_one_hop", "given")  # sources of triplets that no ranker made, and nobody inferred
_FEWEST = 20  # queries of which a mean is worth a line


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
