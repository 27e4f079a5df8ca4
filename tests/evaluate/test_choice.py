"""The choice within a latency budget, its paired test against scipy's own, and what is drawn and said of it."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import RULE
from scipy import stats

from steps.evaluate.choice import CHOICE_MARGIN, choice_lines, choose, compare_on_test
from steps.evaluate.comparing import p_value
from steps.evaluate.drawing import NARROW, WIDE, Mark, Panel, draw_frontier
from steps.retrieval.noninferiority import FEWEST

QUALITY = {"static": 0.62, "1l": 0.60, "2l": 0.65, "4l": 0.69}
P50 = {"static": 0.014, "1l": 0.23, "2l": 0.38, "4l": 0.73}


def values(quality: dict[str, float]) -> dict[str, list[np.ndarray]]:
    """Two data sets whose means average to the given quality; over all queries at once the order is the reverse."""
    spread = np.linspace(-0.1, 0.1, 4), np.linspace(-0.2, 0.2, 40)
    return {name: [3 * mean - 1 + spread[0], 1 - mean + spread[1]] for name, mean in quality.items()}


@pytest.mark.parametrize(
    ("budget", "first", "second", "over"),
    [
        (0.0, "4l", "2l", []),
        (0.73, "4l", "2l", []),  # a budget may be used up
        (0.5, "2l", "static", ["4l"]),
        (0.1, "static", None, ["1l", "2l", "4l"]),
        (0.01, None, None, ["static", "1l", "2l", "4l"]),
    ],
)
def test_the_budget_decides_who_may_be_chosen(budget: float, first: Any, second: Any, over: list[str]) -> None:
    choice = choose(values(QUALITY), P50, budget, RULE)
    assert (choice["student"], choice["runner_up"]) == (first, second)
    assert choice["over_budget"] == {name: P50[name] for name in over}
    assert (choice["p50_ms"], choice["runner_up_p50_ms"]) == (P50.get(first), P50.get(second))
    assert [choice["ndcg"], choice["runner_up_ndcg"]] == pytest.approx([QUALITY.get(first), QUALITY.get(second)])
    assert choice["difference"] == (pytest.approx(QUALITY[first] - QUALITY[second]) if second else None)
    latency: dict[str, Any] = {"teacher": {}} | {name: {} for name in QUALITY}
    line = choice_lines({"choice": choice, "latency": latency, "datasets_dev": {}})[0]
    assert line.startswith(f"Chosen: {str(first).lower()}")
    unjudged = choose(values(QUALITY), P50, budget, RULE, judged_on="nothing")
    overlaps = [unjudged["overlap"], unjudged["runner_up_overlap"]]
    assert (unjudged["student"], unjudged["ndcg"]) == (first, None) and overlaps == pytest.approx(
        [QUALITY.get(first), QUALITY.get(second)]
    )


def test_of_equals_the_faster_is_chosen_then_the_first_by_name() -> None:
    same = values({"a": 0.5, "b": 0.5, "c": 0.5})
    choice = choose(same, {"a": 2.0, "b": 1.0, "c": 1.0}, 0.0, RULE)
    assert (choice["student"], choice["runner_up"], choice["difference"], choice["p_value"]) == ("b", "c", 0.0, 1.0)


def noisy(queries: int, loss: float, noise: float) -> dict[str, list[np.ndarray]]:
    """`slow` has mean 0.7 on two data sets, `fast` loses a share of it on the second; noise of mean 0 over queries."""
    random = np.random.default_rng(4)
    slow = [random.uniform(0.4, 1.0, queries) for _ in range(2)]
    slow = [scores - scores.mean() + 0.7 for scores in slow]
    spread = [random.normal(0, noise, queries) for _ in range(2)]
    losses = (1e-9, loss * 0.7)
    fast = [scores - lost + by - by.mean() for scores, lost, by in zip(slow, losses, spread, strict=True)]
    return {"slow": slow, "fast": fast}


@pytest.mark.medium
def test_the_fastest_that_is_no_worse_than_the_best_is_chosen() -> None:
    times = {"slow": 4.0, "fast": 1.0}
    choice = choose(noisy(5000, 0.002, 0.02), times, 0.0, RULE)
    assert (choice["student"], choice["runner_up"], choice["best"]) == ("fast", "slow", "slow")
    assert choice["difference"] == pytest.approx(-0.0007, abs=1e-6) and choice["ndcg"] == pytest.approx(0.6993)
    assert -RULE.margin < choice["bounds"]["fast"] < -0.002
    outside = choose(noisy(5000, 0.008, 0.02), times, 0.0, RULE)
    assert (outside["student"], outside["runner_up"], outside["reason"]) == ("slow", "fast", "best mean nDCG@10 on dev")
    assert outside["bounds"]["fast"] < -0.008, "on the data set where it is worst"
    fast, slow = np.random.default_rng(9).uniform(size=(2, 50))
    on_test = compare_on_test([fast], [slow], [1.0])
    several, reference = [fast, slow, slow], [slow, fast, fast]
    weighted = compare_on_test(several, reference, [1.0, 0.25, 0.25])
    assert weighted["test_difference"] == pytest.approx((fast.mean() - slow.mean()) / 3)
    assert weighted["test_p_value"] == p_value([fast - slow, slow - fast, slow - fast], [1.0, 0.25, 0.25])
    assert on_test["test_difference"] == pytest.approx(fast.mean() - slow.mean())
    assert on_test["test_p_value"] == pytest.approx(stats.ttest_rel(fast, slow).pvalue)
    metrics = {"choice": choice | on_test, "latency": {"teacher": {}, **times}, "datasets_dev": {"a": {}}}
    chosen, runner_up = choice_lines(metrics)
    assert chosen.startswith("Chosen: fast, the best of the fastest") and "0.6993 on dev" in chosen
    assert " on dev " in runner_up and " on test " in runner_up


@pytest.mark.parametrize(("times", "chosen"), [((4.0, 3.9), "slow"), ((4.0, 3.0), "fast")])
def test_what_the_clock_alone_tells_apart_is_told_apart_by_quality(times: tuple[float, float], chosen: str) -> None:
    twins = noisy(5000, 0.002, 0.02)
    assert choose(twins, dict(zip(twins, times, strict=True)), 0.0, RULE)["student"] == chosen
    three = twins | {"faster": twins["fast"]}
    both_fast = choose(three, {"slow": 4.0, "fast": 1.05, "faster": 1.0}, 0.0, RULE)
    better = choose(three | {"fast": twins["slow"]}, {"slow": 4.0, "fast": 1.05, "faster": 1.0}, 0.0, RULE)
    assert both_fast["student"] == "faster" and better["student"] == "fast"


def test_a_slower_one_that_cannot_be_told_from_a_faster_one_is_said_to_be_so() -> None:
    few, times = noisy(100, 0.002, 0.3), {"slow": 4.0, "fast": 0.05}
    choice = choose(few, times, 0.0, RULE)
    behind = [ours - theirs for ours, theirs in zip(few["slow"], few["fast"], strict=True)]
    assert choice["student"] == "slow" and choice["alike"] == {"fast": {"p_value": p_value(behind), "p50_ms": 0.05}}
    assert choose(few, {"slow": 0.05, "fast": 4.0}, 0.0, RULE)["alike"] == {}, "it is the faster one"
    assert choose(noisy(5000, 0.02, 0.02), times, 0.0, RULE)["alike"] == {}, "it is surely worse"
    assert choose(few, times, 0.0, RULE, judged_on="nothing")["alike"] == {}


@pytest.mark.medium
def test_the_margin_of_the_choice_lets_chance_pass_and_two_percent_not() -> None:
    """Differences as those of the demo's students: one query in four moves, 600 dev queries."""
    rule = RULE.model_copy(update={"margin": CHOICE_MARGIN})
    random = np.random.default_rng(11)
    fast_chosen = {0.0: 0, 0.02: 0}
    for loss in fast_chosen:
        for _ in range(60):
            slow = random.choice([0.0, 0.4, 0.6, 1.0], 600, p=[0.1, 0.12, 0.28, 0.5])
            fast = slow - loss * 0.72 + np.where(random.random(600) < 0.25, random.normal(0, 0.32, 600), 0)
            choice = choose({"slow": [slow], "fast": [fast]}, {"slow": 4.0, "fast": 0.05}, 0.0, rule)
            fast_chosen[loss] += choice["student"] == "fast"
    assert fast_chosen[0.0] >= 36 and fast_chosen[0.02] <= 9


def test_a_handful_of_queries_shows_no_student_to_be_no_worse() -> None:
    times = {"slow": 4.0, "fast": 1.0}
    for queries in (1, 2, FEWEST - 1):
        alike = {
            "slow": [np.full(queries, 0.99), np.full(500, 0.7)],
            "fast": [np.full(queries, 0.99), np.full(500, 0.69999)],
        }
        assert choose(alike, times, 0.0, RULE)["student"] == "slow"
    enough = {"slow": [np.full(FEWEST, 0.99)], "fast": [np.full(FEWEST, 0.989)]}
    assert choose(enough, times, 0.0, RULE)["student"] == "fast"


def test_without_variance_there_is_no_doubt_and_with_one_query_nothing_but() -> None:
    assert p_value([np.full(FEWEST, 0.1), np.full(3, 0.1)]) == 0
    assert p_value([np.full(FEWEST, 0.5), np.full(3, -0.5)]) == 1
    assert p_value([np.full(2, 0.37)]) == 1, "two queries prove nothing"
    several = np.array([0.1, 0.2, 0.3])
    assert p_value([np.array([0.5])]) == 1
    assert p_value([np.array([0.5]), several]) == p_value([several]) < 0.1  # one query has no variance of its own
    assert p_value([np.array([0.5]), several], [0.9, 0.1]) == pytest.approx(p_value([several]))


@pytest.mark.medium
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_label_of_the_drawing_covers_another(width: float) -> None:
    qualities = {"static": 0.985, "1l": 0.994, "2l": 0.996, "4l": 0.998, "teacher": 1.0}
    times = {"static": 0.048, "1l": 0.41, "2l": 0.72, "4l": 1.35, "teacher": 11.7}
    points = [
        Mark(name, times[name], value, value - 0.01, value + 0.01, chosen=name == "4l")
        for name, value in qualities.items()
    ]
    svg = draw_frontier([Panel("", points)], 0.9, width)
    labels = re.findall(r'font-weight: 700[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', svg)
    assert len(labels) == len(points)
    boxes = [(float(x), float(y), float(x) + 6 * len(text)) for x, y, text in labels]
    for first, second in itertools.combinations(boxes, 2):
        assert abs(first[1] - second[1]) > 10 or first[2] < second[0] or second[2] < first[0]


def test_the_choice_is_among_those_that_can_replace_the_teacher() -> None:
    for replacing, first in (([], "4l"), (["1l"], "1l"), (["static", "2l"], "2l"), (["nobody"], "4l")):
        choice = choose(values(QUALITY), P50, 0.0, RULE, replacing=replacing)
        assert choice["student"] == first and set(choice["replacing"]) == set(replacing) & set(QUALITY)
        assert choice["runner_up"] and choice["runner_up"] != first
    within = choose(values(QUALITY), P50, 0.1, RULE, replacing=["2l"])
    assert within["student"] == "static", "the one that could is over the budget"
