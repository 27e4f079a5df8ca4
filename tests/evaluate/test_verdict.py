"""May a student replace the teacher: the answer, the number of queries that would tell, and the sentences."""

import math
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import RULE
from scipy import stats

from steps.evaluate.verdict import headline, overall, replacing, verdict_lines, verdicts


def paired(loss: float, noise: float, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """A student that loses a share of a teacher's mean of 0.6."""
    random = np.random.default_rng(5)
    teacher, moved = random.uniform(0.2, 1.0, queries), random.normal(0, noise, queries)
    return teacher + moved - moved.mean() - loss * teacher.mean(), teacher


@pytest.mark.medium
def test_the_answer_follows_the_bounds_which_are_those_of_a_t_interval() -> None:
    for loss, noise, queries, answer in (
        (0.001, 0.02, 2000, "yes"), (0.02, 0.02, 2000, "no"), (0.001, 0.2, 200, "cannot tell"),
    ):  # fmt: skip
        student, teacher = paired(loss, noise, queries)
        row = verdicts({"s": {"a": student}}, {"a": teacher}, RULE)["a"]["s"]
        assert (row["answer"], row["queries"]) == (answer, queries)
        assert row["change"] == pytest.approx(-loss)
        values = student - (1 - RULE.margin) * teacher
        spread = stats.t.ppf(0.95, queries - 1) * values.std(ddof=1) / np.sqrt(queries)
        ends = [(values.mean() + side * spread) / teacher.mean() - RULE.margin for side in (-1, 1)]
        assert [row["low"], row["high"]] == pytest.approx(ends, abs=0.1 * (ends[1] - ends[0]))


@pytest.mark.parametrize(("queries", "answer"), [(29, "cannot tell"), (30, "yes")])
def test_few_queries_are_neither_yes_nor_no_though_all_are_equal(queries: int, answer: str) -> None:
    values = np.ones(queries)
    assert verdicts({"s": {"a": values}}, {"a": values}, RULE)["a"]["s"]["answer"] == answer
    worse = verdicts({"s": {"a": values * 0.5}}, {"a": values}, RULE)["a"]["s"]["answer"]
    assert worse == ("no" if answer == "yes" else answer)


def test_of_several_data_sets_the_upper_bounds_hold_together() -> None:
    student, teacher = paired(0.02, 0.2, 200)
    single = verdicts({"s": {"a": student}}, {"a": teacher}, RULE)["a"]["s"]
    both = verdicts({"s": {"a": student, "b": student}}, {"a": teacher, "b": teacher}, RULE)["b"]["s"]
    assert both["low"] == single["low"] and both["high"] > single["high"]


def test_a_data_set_where_the_teacher_finds_nothing_has_no_verdict() -> None:
    student, teacher = paired(0.001, 0.02, 200)
    both = verdicts({"s": {"a": student, "dark": student}}, {"a": teacher, "dark": 0 * teacher}, RULE)
    assert both == verdicts({"s": {"a": student}}, {"a": teacher}, RULE)


@pytest.mark.parametrize(("noise", "gain"), [(0.2, 0.03), (0.05, 0.0), (0.1, 0.01)])
def test_as_many_queries_as_it_says_would_show_a_yes_four_times_in_five(noise: float, gain: float) -> None:
    """Normal differences with the same mean and spread: the exact one-sided z test has a power of 80 % there."""
    student, teacher = paired(-gain, noise, 400)
    judgement = RULE.judge(student, teacher)
    values = student - (1 - RULE.margin) * teacher
    assert judgement.enough is not None
    step = values.mean() / (values.std(ddof=1) / math.sqrt(judgement.enough))
    assert stats.norm.sf(stats.norm.ppf(0.95) - step) == pytest.approx(0.8, abs=0.01)


def test_no_number_of_queries_shows_a_yes_if_the_loss_is_what_is_allowed() -> None:
    for loss in (RULE.margin, RULE.margin + 1e-6, 0.02):
        assert RULE.judge(*paired(loss, 0.2, 400)).enough is None


def test_one_no_is_a_no_and_a_yes_is_a_yes_on_all() -> None:
    assert overall(["yes", "yes"]) == "yes" and overall(["yes", "cannot tell"]) == "cannot tell"
    assert overall(["cannot tell", "no"]) == "no"
    row = {"answer": "yes"}
    assert replacing({"a": {"s": row, "t": row}, "b": {"s": row, "t": {"answer": "no"}}}) == ["s"]


def metrics(answers: dict[str, list[str]], **more: Any) -> dict[str, Any]:
    """metrics.json of students with these answers on as many data sets; the teacher takes 10 ms, they 1, 2, 3 ..."""
    row = {"change": -0.002, "low": -0.02, "high": 0.001, "queries": 1000, "enough": 3142}
    sets = "abc"[: len(next(iter(answers.values())))]
    return {
        "verdict": {
            name: {student: row | {"answer": by_dataset[position]} for student, by_dataset in answers.items()}
            for position, name in enumerate(sets)
        },
        "settings": {"margin": 0.005, "confidence": 0.95},
        "served": {"teacher": {"p50_ms": 10.0}} | {name: {"p50_ms": n + 1.0} for n, name in enumerate(answers)},
        "sizes": {name: {"bytes": 2_000_000} for name in (*answers, "teacher")},
        "queries": {name: {} for name in sets},
        "closeness": {},
    } | more


def test_the_best_news_comes_first_and_of_equals_the_fastest() -> None:
    answers = {"no": ["no"], "slow": ["yes"], "open": ["cannot tell"], "slower": ["yes"]}
    assert [line.split(" ")[0].rstrip(":") for line in headline(metrics(answers))] == ["slow", "slower", "open", "no"]


def test_a_sentence_names_the_speed_the_loss_and_the_queries_that_would_tell() -> None:
    [line] = headline(metrics({"s": ["cannot tell"]}))
    assert "10 times as fast" in line and "1,000 queries" in line and "about 3,100 would" in line
    hopeless = metrics({"s": ["cannot tell"]})
    hopeless["verdict"]["a"]["s"] |= {"enough": None, "change": -0.1}
    [line] = headline(hopeless)
    assert "10.0 %" in line and "about" not in line
    hopeless["verdict"]["a"]["s"] |= {"change": 0.0047}
    [line] = headline(hopeless)
    assert "gains 0.47 %" in line and "loss" not in line
    [line] = headline(metrics({"s": ["yes", "no", "no"]}))
    assert "cannot replace the teacher" in line and "on b, c" in line
    slow = metrics({"s": ["yes"]}, served={"teacher": {"p50_ms": 1.0}, "s": {"p50_ms": 2.0}})
    assert "2 times as slow" in headline(slow)[0]
    api = metrics({"s": ["yes"]}, sizes={"s": {"bytes": 1}})
    assert "without an API call" in headline(api)[0]
    enough = metrics({"s": ["yes", "yes"]}, lexical={"a": {"answer": "yes"}, "b": {"answer": "no"}})
    assert headline(enough)[-1].startswith("BM25 alone is enough for a:")


def test_without_judgements_the_closeness_is_told_and_no_verdict() -> None:
    close = {"a": {"s": {"overlap": 0.5}, "t": {"overlap": 0.9}}}
    texts = {"a": {"sentences": 282, "titles": 118}}
    unjudged = {"verdict": {}, "closeness": close, "closeness_texts": texts}
    lines = headline(metrics({"s": ["yes"], "t": ["yes"]}) | unjudged)
    assert [line.split(" ")[0] for line in lines] == ["t", "s"] and "90.0" in lines[0] and "282 sentences" in lines[0]
    assert verdict_lines({"verdict": {}}, "s") == []


def test_the_figures_stand_behind_the_sentence_like_for_like_too() -> None:
    row = {"answer": "no", "change": -0.031, "low": -0.04, "high": -0.02, "queries": 1000, "enough": None}
    fused = metrics(
        {"s": ["yes", "yes"]},
        like_for_like={"b": {"s": {"alone": row, "both": row}}},
        fused={"b": {"s": {"carried": True, "bytes": 300_000}}},
    )
    lines = verdict_lines(fused, "s")
    assert [line.partition(":")[0] for line in lines[:4]] == ["a", "b", "b, encoders alone", "b, BM25 on both sides"]
    assert "0.3\u00a0MB" in lines[4]
    fused["verdict"]["a"]["s"]["answer"] = "cannot tell"
    assert "s with BM25 on b:" in headline(fused)[0] and "With BM25 on both sides it loses 3.1 %" in headline(fused)[0]


@pytest.mark.parametrize(("high", "queries", "said"), [(-0.003, 1000, True), (0.003, 1000, False), (-0.003, 5, False)])
def test_who_can_replace_the_teacher_is_not_said_to_lose_nothing_to_one_with_bm25(
    high: float, queries: int, said: bool
) -> None:
    both = {"answer": "cannot tell", "change": -0.015, "low": -0.03, "high": high, "queries": queries, "enough": None}
    row = {"answer": "yes", "change": 0.05, "low": 0.02, "high": 0.08, "queries": 1000, "enough": 30}
    [line] = headline(metrics({"s": ["yes"]}, like_for_like={"a": {"s": {"alone": row, "both": both}}}))
    assert "can replace the teacher" in line and ("With BM25 on both sides it loses 1.5 %" in line) is said
