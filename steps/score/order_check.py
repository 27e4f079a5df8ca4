"""Does a teacher order the documents that the index's teacher finds better than that one does?"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

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

    def as_dict(self) -> dict[str, float]:
        """For the report."""
        return asdict(self)

    def said(self, teacher: str) -> str:
        """One line; a WARNING where students that learn these scores may learn a worse order."""
        found = (
            f"nDCG@10 of the documents near {self.queries:,} training queries with a known answer: {self.teacher:.3f}"
            f" as {teacher} orders them, {self.index:.3f} in the order of the index's teacher"
        )
        if self.p_worse <= SIGNIFICANT:
            advice = "train it on more triplets or epochs, name a stronger one, or compare a student without them"
            return f"WARNING: {found}: students may lose by learning {teacher}'s scores; {advice}"
        return found if self.p_better <= SIGNIFICANT else f"{found}, which may be chance"


@dataclass
class OrderCheck:
    """Collects both orders, a shard of texts at a time.

    `nearest` `(texts, k)` are rows of documents, the nearest first; `known` has rows of answers by the place of a text.
    """

    nearest: np.ndarray
    known: Mapping[int, np.ndarray]
    _found: list[np.ndarray] = field(default_factory=list)

    def add(self, start: int, scores: np.ndarray) -> None:
        """Take the teacher's scores `(texts, k)` of the texts from `start` on."""
        places = [
            place
            for place in range(start, start + len(scores))
            if place in self.known and np.isin(self.known[place], self.nearest[place]).any()
        ]
        if not places:
            return
        names = [str(place) for place in places]
        qrels = {str(place): dict.fromkeys(map(str, self.known[place].tolist()), 1) for place in places}
        documents = [list(map(str, self.nearest[place].tolist())) for place in places]
        falling = [-np.arange(self.nearest.shape[1], dtype=np.float32)] * len(places)
        own = [scores[place - start] for place in places]
        self._found.append(np.stack([ndcg_at_10(qrels, names, documents, each) for each in (falling, own)], axis=1))

    def orders(self) -> Orders | None:
        """What was found; None of too few queries, or of lists of one document."""
        found = np.concatenate([np.zeros((0, 2)), *self._found])
        if len(found) < _FEWEST or self.nearest.shape[1] < 2:
            return None
        index, teacher = found.T
        worse, better = p_of_gain(teacher, index), p_of_gain(index, teacher)
        return Orders(len(found), float(index.mean()), float(teacher.mean()), worse, better)
