"""Where the best student loses: the dev queries with the largest drop from the teacher, for a reader's eye."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.core.measures import NDCG, UNCUT
from steps.evaluate.scoring import Scored


@dataclass(frozen=True)
class Loss:
    """A query and the rank of its first relevant document for each model (None: not among the hits)."""

    dataset: str
    text: str
    teacher_rank: int | None
    student_rank: int | None
    drop: float


def worst_losses(teacher: Sequence[Scored], student: Sequence[Scored], count: int) -> list[Loss]:
    """The `count` queries with the largest drop of nDCG@10; both sequences hold the same judged sets in order."""
    found = []
    for ours, theirs in zip(student, teacher, strict=True):
        drop = theirs.values[NDCG] - ours.values[NDCG]
        for row in np.flatnonzero(drop > 0):
            loss = Loss(
                ours.judged.dataset,
                ours.judged.texts[row],
                _rank(theirs.values[UNCUT][row]),
                _rank(ours.values[UNCUT][row]),
                float(drop[row]),
            )
            found.append((-loss.drop, ours.judged.query_ids[row], loss))
    return [loss for _, _, loss in sorted(found, key=lambda item: item[:2])[:count]]


def _rank(reciprocal: float) -> int | None:
    return round(1 / reciprocal) if reciprocal > 0 else None
