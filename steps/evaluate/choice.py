"""The student that the evaluation chooses within a latency budget (`evaluate.budget_ms`), and what is said of it.

If some students can replace the teacher by the promotion gate's rule, on test, the choice is among these alone: the
evaluation never chooses what the gate would doubt. Among them, and else among all, the fastest is chosen that is no
worse than the best on dev, and of those that are about as fast the best. If nothing is judged, it is the student that
is closest to the teacher.

Students are compared as their releases serve them: fused with BM25 if these carry it. No worse is tested as the gate
does, on every data set and with its confidence, by CHOICE_MARGIN.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from steps.evaluate.comparing import is_chance, p_value, significant
from steps.evaluate.formatting import times
from steps.evaluate.systems import fusing, served_name
from steps.retrieval.noninferiority import FEWEST, NonInferiority

# student -> nDCG@10 by query, or overlap with the teacher's top ten by text: one array `(queries,)` a data set
Values = Mapping[str, Sequence[np.ndarray]]
JudgedOn = Literal["dev", "test", "nothing"]
CHOICE_MARGIN = 0.02
"""Share of the best one's nDCG@10 that a faster student may lose and still be chosen. 600 dev queries show of about
three in four equally good ones that they lose less than 0.02; less than 0.005 of hardly any.
"""
SAME_SPEED = 1.2
"""Times that differ by less may be chance: of such students the better on dev is chosen."""
REASONS: dict[JudgedOn, str] = {
    "dev": "best mean nDCG@10 on dev",
    "test": "best mean nDCG@10 on test, as there are no dev queries",
    "nothing": "closest to the teacher by the mean overlap of their top 10, as nothing is judged",
}


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
) -> dict[str, Any]:
    """`choice` of metrics.json, among students whose median latency is within the budget, in milliseconds; 0 = none.

    If some of those are in `replacing`, they can replace the teacher, and the choice is among these alone. `weights` of
    the data sets in a mean; None = alike.
    """
    over = {student: value for student, value in p50_ms.items() if 0 < budget_ms < value}
    within = [student for student in ranked(values, p50_ms, weights) if student not in over]
    can_replace = [student for student in within if student in replacing]
    judged, eligible = judged_on != "nothing", can_replace or within
    empty = ["student", "p50_ms", "best", "runner_up", "runner_up_p50_ms", "difference", "p_value", "test_difference"]
    empty += ["test_p_value", "ndcg", "runner_up_ndcg", *(() if judged else ("overlap", "runner_up_overlap"))]
    choice: dict[str, Any] = dict.fromkeys(empty) | {
        "budget_ms": budget_ms,
        "over_budget": over,
        "reason": REASONS[judged_on],
        "margin": rule.margin,
        "confidence": rule.confidence,
        "replacing": can_replace,
        "bounds": {},
        "alike": {},
    }
    if not within:
        return choice
    best = first = eligible[0]
    if judged:
        choice["bounds"] = {student: _bound(values[student], values[best], rule) for student in eligible[1:]}
        no_worse = [student for student, bound in choice["bounds"].items() if bound >= -rule.margin]
        quick = min(p50_ms[student] for student in (best, *no_worse)) * SAME_SPEED
        first = next(student for student in eligible if student in {best, *no_worse} and p50_ms[student] <= quick)
    if first != best:
        choice["reason"] = _reason(best, judged_on, rule)
    measure = "ndcg" if judged else "overlap"
    choice |= {"student": first, "p50_ms": p50_ms[first], "best": best, measure: _mean(values[first], weights)}
    if len(within) == 1:
        return choice
    for student in eligible if judged else ():
        if p50_ms[student] * SAME_SPEED < p50_ms[first] and is_chance(
            chance := _chance(values[first], values[student], weights)
        ):
            choice["alike"][student] = {"p_value": chance, "p50_ms": p50_ms[student]}
    second = next(student for student in [*eligible, *within] if student != first)
    next_mean = _mean(values[second], weights)
    return choice | {
        "runner_up": second,
        "runner_up_p50_ms": p50_ms[second],
        f"runner_up_{measure}": next_mean,
        "difference": choice[measure] - next_mean,
        "p_value": _chance(values[first], values[second], weights),
    }


def compare_on_test(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], weights: Sequence[float]
) -> dict[str, float]:
    """`choice` of metrics.json on test: choice and runner-up by nDCG@10 `(queries,)` a data set; {} without any.

    `weights` of the data sets in the mean.
    """
    if not ours or not theirs:
        return {}
    return {
        "test_difference": _mean(ours, weights) - _mean(theirs, weights),
        "test_p_value": _chance(ours, theirs, weights),
    }


def _chance(student: Sequence[np.ndarray], reference: Sequence[np.ndarray], weights: Sequence[float] | None) -> float:
    return p_value([ours - theirs for ours, theirs in zip(student, reference, strict=True)], weights)


def _bound(student: Sequence[np.ndarray], best: Sequence[np.ndarray], rule: NonInferiority) -> float:
    """Change against the best as a share of its mean, on the data set where it is least; 0 where the best has none.

    -1, a loss of all, with fewer than FEWEST queries.
    """
    if min(map(len, best)) < FEWEST:
        return -1.0
    pairs = [(ours, theirs, float(theirs.mean())) for ours, theirs in zip(student, best, strict=True)]
    return min(
        float(rule.lower_bound(ours, theirs)) / mean - rule.margin if mean > 0 else 0.0 for ours, theirs, mean in pairs
    )


def _reason(best: str, judged_on: JudgedOn, rule: NonInferiority) -> str:
    sentence = (
        f"best of the fastest that are shown to lose less than {rule.margin:.2%} of the best one's ({best}) nDCG@10"
    )
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
    if choice["ndcg"] is None:
        on_split, figure = "", f"{choice['overlap']:.1%} of the teacher's top 10 found"
    else:
        on_split = " on dev" if metrics.get("datasets_dev") else " on test"
        figure = f"nDCG@10 {choice['ndcg']:.4f}{on_split}"
    name = served_name(metrics, choice["student"])
    lines = [f"Chosen: {name}, {_why(metrics)}: {figure}, {choice['p50_ms']:.3g}{unit}"]
    if choice["runner_up"] is not None:
        line = f"Runner-up: {served_name(metrics, choice['runner_up'])}, {choice['runner_up_p50_ms']:.3g}{unit}; "
        line += _distance(choice["difference"], choice["p_value"], on_split)
        if choice.get("test_difference") is not None:
            line += f", {_distance(choice['test_difference'], choice['test_p_value'], ' on test')}"
        lines.append(line)
    if alike := choice.get("alike"):
        faster = min(alike, key=lambda student: (alike[student]["p50_ms"], student))
        slower = times(choice["p50_ms"] / alike[faster]["p50_ms"])
        lines.append(
            f"{choice['student']} is {slower} times slower than {served_name(metrics, faster)}, and these queries"
            f" cannot show which is better (p {significant(alike[faster]['p_value'])})"
        )
    if over:
        slower = ", ".join(f"{student} ({over[student]:.3g} ms)" for student in sorted(over, key=over.__getitem__))
        lines.append(f"Over the budget: {slower}")
    return lines


def _why(metrics: Mapping[str, Any]) -> str:
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
    return f"the best of the fastest that are, on {split} and with {choice['confidence']:.0%} confidence, {worse}"


def _distance(difference: float, p_value: float, where: str) -> str:
    return f"{abs(difference):.4f} {'lower' if difference >= 0 else 'higher'}{where} (p {significant(p_value)})"
