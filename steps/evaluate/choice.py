"""The student that a latency budget (`distill.budget_ms`) leaves: the best on dev within it, and the next best."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from steps.evaluate.retention import p_value

Values = Mapping[str, Sequence[np.ndarray]]  # student -> nDCG@10 by query, one array `(queries,)` a data set


@dataclass(frozen=True)
class Choice:
    """The chosen student and the runner-up, None where the budget leaves none; `ndcg` are means over data sets.

    `difference` is how far the runner-up is behind, `p_value` that of a paired t-test between the two. `over_budget`
    maps the students that were left out to their median latency in milliseconds.
    """

    budget_ms: float
    over_budget: Mapping[str, float]
    student: str | None = None
    p50_ms: float | None = None
    ndcg: float | None = None
    runner_up: str | None = None
    runner_up_p50_ms: float | None = None
    runner_up_ndcg: float | None = None
    difference: float | None = None
    p_value: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Field name -> value."""
        return asdict(self)


def ranked(values: Values, p50_ms: Mapping[str, float]) -> list[str]:
    """Students by mean over data sets of nDCG@10, the best first; of equals the faster one, then the first by name."""
    return sorted(values, key=lambda student: (-_ndcg(values[student]), p50_ms[student], student))


def choose(values: Values, p50_ms: Mapping[str, float], budget_ms: float) -> Choice:
    """The first two of `ranked` whose median latency is within the budget, in milliseconds; 0 = no budget."""
    over = {student: value for student, value in p50_ms.items() if 0 < budget_ms < value}
    within = [student for student in ranked(values, p50_ms) if student not in over]
    if not within:
        return Choice(budget_ms, over)
    first = within[0]
    ndcg = _ndcg(values[first])
    if len(within) == 1:
        return Choice(budget_ms, over, first, p50_ms[first], ndcg)
    second = within[1]
    behind = [ours - theirs for ours, theirs in zip(values[first], values[second], strict=True)]
    return Choice(
        budget_ms=budget_ms,
        over_budget=over,
        student=first,
        p50_ms=p50_ms[first],
        ndcg=ndcg,
        runner_up=second,
        runner_up_p50_ms=p50_ms[second],
        runner_up_ndcg=_ndcg(values[second]),
        difference=ndcg - _ndcg(values[second]),
        p_value=p_value(behind),
    )


def _ndcg(values: Sequence[np.ndarray]) -> float:
    return float(np.mean([value.mean() for value in values]))
