"""The student that a latency budget (`evaluate.budget_ms`) leaves: the best on dev within it, and the next best.

Where nothing is judged, it is the one that is closest to the teacher.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from steps.evaluate.retention import p_value

# student -> nDCG@10 by query, or overlap with the teacher's top ten by text: one array `(queries,)` a data set
Values = Mapping[str, Sequence[np.ndarray]]
JudgedOn = Literal["dev", "test", "nothing"]
REASONS: dict[JudgedOn, str] = {
    "dev": "best mean nDCG@10 on dev",
    "test": "best mean nDCG@10 on test, as there are no dev queries",
    "nothing": "closest to the teacher by the mean overlap of their top 10, as nothing is judged",
}


@dataclass(frozen=True)
class Choice:
    """The chosen student and the runner-up, None where the budget leaves none; and the reason in words.

    `ndcg` are means over data sets, and so are `overlap` (with the teacher's top ten), by which students are compared
    where nothing is judged; of the two pairs one is None. `difference` is how far the runner-up is behind, `p_value`
    that of a paired t-test between the two. `over_budget` maps the students that were left out to their median latency
    in milliseconds.
    """

    budget_ms: float
    over_budget: Mapping[str, float]
    reason: str
    student: str | None = None
    p50_ms: float | None = None
    ndcg: float | None = None
    runner_up: str | None = None
    runner_up_p50_ms: float | None = None
    runner_up_ndcg: float | None = None
    overlap: float | None = None
    runner_up_overlap: float | None = None
    difference: float | None = None
    p_value: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Field name -> value; overlaps only where they decided."""
        named = asdict(self)
        return named if self.reason == REASONS["nothing"] else {k: v for k, v in named.items() if "overlap" not in k}


def ranked(values: Values, p50_ms: Mapping[str, float]) -> list[str]:
    """Students by mean over data sets of their values, the best first; of equals the faster one, then by name."""
    return sorted(values, key=lambda student: (-_mean(values[student]), p50_ms[student], student))


def choose(values: Values, p50_ms: Mapping[str, float], budget_ms: float, judged_on: JudgedOn = "dev") -> Choice:
    """The first two of `ranked` whose median latency is within the budget, in milliseconds; 0 = no budget."""
    over = {student: value for student, value in p50_ms.items() if 0 < budget_ms < value}
    within = [student for student in ranked(values, p50_ms) if student not in over]
    chosen = Choice(budget_ms, over, REASONS[judged_on])
    if not within:
        return chosen
    first = within[0]
    mean = _mean(values[first])
    chosen = replace(chosen, student=first, p50_ms=p50_ms[first])
    chosen = replace(chosen, overlap=mean) if judged_on == "nothing" else replace(chosen, ndcg=mean)
    if len(within) == 1:
        return chosen
    second = within[1]
    next_mean = _mean(values[second])
    behind = [ours - theirs for ours, theirs in zip(values[first], values[second], strict=True)]
    chosen = replace(
        chosen,
        runner_up=second,
        runner_up_p50_ms=p50_ms[second],
        difference=mean - next_mean,
        p_value=p_value(behind),
    )
    if judged_on == "nothing":
        return replace(chosen, runner_up_overlap=next_mean)
    return replace(chosen, runner_up_ndcg=next_mean)


def _mean(values: Sequence[np.ndarray]) -> float:
    return float(np.mean([value.mean() for value in values]))
