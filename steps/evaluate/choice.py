"""The student that the evaluation chooses within a latency budget (`evaluate.budget_ms`), and what is said of it.

If some students can replace the teacher by the promotion gate's rule, on test, the choice is among these alone: the
evaluation never chooses what the gate would doubt. Among them, and else among all, the fastest is chosen that is no
worse than the best on dev. If nothing is judged, it is the student that is closest to the teacher.

Students are compared as their releases serve them: fused with BM25 if these carry it. No worse is tested as the gate
does, on every data set and with its confidence, by CHOICE_MARGIN.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from steps.evaluate.comparing import is_chance, p_value, significant
from steps.evaluate.formatting import times
from steps.evaluate.served import fusing, served_name
from steps.retrieval.noninferiority import FEWEST, NonInferiority

# student -> nDCG@10 by query, or overlap with the teacher's top ten by text: one array `(queries,)` a data set
Values = Mapping[str, Sequence[np.ndarray]]
JudgedOn = Literal["dev", "test", "nothing"]
CHOICE_MARGIN = 0.02
"""Share of the best one's nDCG@10 that a faster student may lose and still be chosen. 600 dev queries show of about
three in four equally good ones that they lose less than 0.02; less than 0.005 of hardly any.
"""
REASONS: dict[JudgedOn, str] = {
    "dev": "best mean nDCG@10 on dev",
    "test": "best mean nDCG@10 on test, as there are no dev queries",
    "nothing": "closest to the teacher by the mean overlap of their top 10, as nothing is judged",
}


@dataclass(frozen=True)
class Choice:
    """The chosen student and the runner-up, None where the budget leaves none; and the reason in words.

    `best` has the best mean; where a faster one is chosen it is the runner-up, else that is the next best. `ndcg` are
    means over data sets, and so are `overlap` (with the teacher's top ten), by which students are compared where
    nothing is judged; of the two pairs one is None. `difference` is how far the runner-up is behind, below 0 where it
    is ahead, `p_value` that of a paired t-test between the two. `over_budget` maps the students that were left out to
    their median latency in milliseconds, `bounds` the others but the best to their change against it as the rule
    bounds it: a share of its mean, on the data set where it is least, from -`margin` on no worse; -1 where too few
    queries bound nothing. `alike` maps faster ones whose difference to the chosen one may be chance to its `p_value`
    and their `p50_ms`. `replacing` are the students within the budget that can replace the teacher. `test_difference`
    and `test_p_value` compare choice and runner-up on the test queries, for readers: nothing is chosen by them.
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
    best: str | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    alike: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    margin: float = 0.0
    confidence: float = 0.0
    replacing: Sequence[str] = ()
    test_difference: float | None = None
    test_p_value: float | None = None

    def with_test(self, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> "Choice":
        """The same with the test queries' difference of choice and runner-up, nDCG@10 `(queries,)` a data set."""
        if not ours or not theirs:
            return self
        return replace(
            self, test_difference=_mean(ours, None) - _mean(theirs, None), test_p_value=_chance(ours, theirs, None)
        )

    def as_dict(self) -> dict[str, Any]:
        """Field name -> value; overlaps only where they decided."""
        named = asdict(self)
        return named if self.reason == REASONS["nothing"] else {k: v for k, v in named.items() if "overlap" not in k}


def ranked(values: Values, p50_ms: Mapping[str, float], weights: Sequence[float] | None = None) -> list[str]:
    """Students by mean over data sets of their values, the best first; of equals the faster one, then by name."""
    return sorted(values, key=lambda student: (-_mean(values[student], weights), p50_ms[student], student))


def choose(
    values: Values,
    p50_ms: Mapping[str, float],
    budget_ms: float,
    rule: NonInferiority,
    judged_on: JudgedOn = "dev",
    weights: Sequence[float] | None = None,
    replacing: Collection[str] = (),
) -> Choice:
    """The choice among students whose median latency is within the budget, in milliseconds; 0 = no budget.

    If some of those are in `replacing`, the choice is among these alone: they can replace the teacher.

    One that is faster than the best goes first if it is shown to be no worse.
    `weights` of the data sets in a mean; None = alike.
    """
    over = {student: value for student, value in p50_ms.items() if 0 < budget_ms < value}
    within = [student for student in ranked(values, p50_ms, weights) if student not in over]
    eligible = [student for student in within if student in replacing] or within
    chosen = Choice(
        budget_ms,
        over,
        REASONS[judged_on],
        margin=rule.margin,
        confidence=rule.confidence,
        replacing=[student for student in within if student in replacing],
    )
    if not within:
        return chosen
    best = first = eligible[0]
    if judged_on != "nothing":
        bounds = {student: _bound(values[student], values[best], rule) for student in eligible[1:]}
        first = min([best, *(s for s, bound in bounds.items() if bound >= -rule.margin)], key=p50_ms.__getitem__)
        chosen = replace(chosen, bounds=bounds)
    if first != best:
        chosen = replace(chosen, reason=_reason(best, judged_on, rule))
    mean = _mean(values[first], weights)
    chosen = replace(chosen, student=first, p50_ms=p50_ms[first], best=best)
    chosen = replace(chosen, overlap=mean) if judged_on == "nothing" else replace(chosen, ndcg=mean)
    if len(within) == 1:
        return chosen
    if judged_on != "nothing":
        faster_ones = {s: _chance(values[first], values[s], weights) for s in eligible if p50_ms[s] < p50_ms[first]}
        chosen = replace(
            chosen, alike={s: {"p_value": p, "p50_ms": p50_ms[s]} for s, p in faster_ones.items() if is_chance(p)}
        )
    second = next(student for student in [*eligible, *within] if student != first)
    next_mean = _mean(values[second], weights)
    chosen = replace(
        chosen,
        runner_up=second,
        runner_up_p50_ms=p50_ms[second],
        difference=mean - next_mean,
        p_value=_chance(values[first], values[second], weights),
    )
    if judged_on == "nothing":
        return replace(chosen, runner_up_overlap=next_mean)
    return replace(chosen, runner_up_ndcg=next_mean)


def _chance(student: Sequence[np.ndarray], reference: Sequence[np.ndarray], weights: Sequence[float] | None) -> float:
    """p-value of the mean difference of both."""
    return p_value([ours - theirs for ours, theirs in zip(student, reference, strict=True)], weights)


def _bound(student: Sequence[np.ndarray], best: Sequence[np.ndarray], rule: NonInferiority) -> float:
    """Change against the best as a share of its mean, on the data set where it is least; 0 where the best has none.

    Fewer than FEWEST queries show nobody to be no worse, which counts as losing all.
    """
    if min(map(len, best)) < FEWEST:
        return -1.0
    pairs = [(ours, theirs, float(theirs.mean())) for ours, theirs in zip(student, best, strict=True)]
    return min(
        float(rule.lower_bound(ours, theirs)) / mean - rule.margin if mean > 0 else 0.0 for ours, theirs, mean in pairs
    )


def _reason(best: str, judged_on: JudgedOn, rule: NonInferiority) -> str:
    sentence = f"fastest that is shown to lose less than {rule.margin:.2%} of the best one's ({best}) nDCG@10"
    where = "on dev" if judged_on == "dev" else "on test, as there are no dev queries"
    return f"{sentence} {where}, with {rule.confidence:.0%} confidence"


def _mean(values: Sequence[np.ndarray], weights: Sequence[float] | None) -> float:
    return float(np.average([value.mean() for value in values], weights=weights))


def choice_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The choice within the latency budget, its runner-up and who was left out, a line each."""
    choice = metrics["choice"]
    budget, over = choice["budget_ms"], choice["over_budget"]
    if choice["student"] is None:
        fastest = min(over, key=lambda student: (over[student], student))
        return [
            f"Chosen: none. No student is within evaluate.budget_ms ({budget:g}); the fastest, {fastest}, needs"
            f" {over[fastest]:.3g} ms a query"
        ]
    unit = " ms from text to hits" if fusing(metrics) else " ms"
    name, judged = served_name(metrics, choice["student"]), choice["ndcg"] is not None
    split = "dev" if metrics.get("datasets_dev") else "test"
    figure = (
        f"nDCG@10 {choice['ndcg']:.4f} on {split}"
        if judged
        else f"{choice['overlap']:.1%} of the teacher's top 10 found"
    )
    lines = [f"Chosen: {name}, {_why(metrics)}: {figure}, {choice['p50_ms']:.3g}{unit}"]
    if choice["runner_up"] is not None:
        lines.append(_runner_up_line(metrics, split if judged else "", unit))
    if alike := choice.get("alike"):
        lines.append(_alike_line(metrics, alike))
    if over:
        slower = ", ".join(f"{student} ({over[student]:.3g} ms)" for student in sorted(over, key=over.__getitem__))
        lines.append(f"Over the budget: {slower}")
    return lines


def _why(metrics: Mapping[str, Any]) -> str:
    """Why the chosen student was chosen; what dev queries say is told as theirs."""
    choice = metrics["choice"]
    budget = f" within {choice['budget_ms']:g} ms a query" if choice["budget_ms"] else ""
    within = len(metrics["latency"].keys() - {"teacher"}) - len(choice["over_budget"])
    replacing = choice.get("replacing", [])
    if within == 1:
        return f"the only one{budget}"
    if len(replacing) == 1:
        return f"the only one of {within}{budget} that can replace the teacher"
    group = f"the {len(replacing)} that can replace the teacher" if replacing else f"{within}"
    if choice["ndcg"] is None:
        return f"the closest to the teacher of {group}{budget}, as nothing is judged"
    split = "dev" if metrics["datasets_dev"] else "test"
    if choice["student"] == choice["best"]:
        return f"the best of {group}{budget}" + ("" if split == "dev" else ", by test as there are no dev queries")
    worse = f"at most {choice['margin']:.1%} worse than {choice['best']}, the best of {group}{budget}"
    return f"the fastest that is, on {split} and with {choice['confidence']:.0%} confidence, {worse}"


def _runner_up_line(metrics: Mapping[str, Any], split: str, unit: str) -> str:
    """The runner-up with its distance to the choice, on the split that decided and on the test queries."""
    choice = metrics["choice"]
    line = f"Runner-up: {served_name(metrics, choice['runner_up'])}, {choice['runner_up_p50_ms']:.3g}{unit}; "
    line += _distance(choice["difference"], choice["p_value"], f" on {split}" if split else "")
    if choice.get("test_difference") is not None:
        line += f", {_distance(choice['test_difference'], choice['test_p_value'], ' on test')}"
    return line


def _distance(difference: float, p_value: float, where: str) -> str:
    return f"{abs(difference):.4f} {'lower' if difference >= 0 else 'higher'}{where} (p {significant(p_value)})"


def _alike_line(metrics: Mapping[str, Any], alike: Mapping[str, Mapping[str, float]]) -> str:
    """That a faster student, the fastest of those in `alike`, may be as good as the chosen one."""
    choice = metrics["choice"]
    faster = min(alike, key=lambda student: (alike[student]["p50_ms"], student))
    slower = times(choice["p50_ms"] / alike[faster]["p50_ms"])
    return (
        f"{choice['student']} is {slower} times slower than {served_name(metrics, faster)}, and these queries cannot"
        f" show which is better (p {significant(alike[faster]['p_value'])})"
    )
