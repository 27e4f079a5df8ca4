"""Yes, no or not to be told: a student against the teacher, by an interval that is worked out apart."""

import numpy as np
import pytest
from evaluate_fakes import RULE
from scipy import stats

from steps.evaluate.verdict import verdict_of, verdicts


def paired(loss: float, noise: float, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """A student that loses a share of a teacher's mean of 0.6."""
    random = np.random.default_rng(5)
    teacher, moved = random.uniform(0.2, 1.0, queries), random.normal(0, noise, queries)
    return teacher + moved - moved.mean() - loss * teacher.mean(), teacher


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


@pytest.mark.parametrize(("queries", "answer"), [(8, "cannot tell"), (29, "cannot tell"), (30, "yes")])
def test_few_queries_are_neither_yes_nor_no_though_all_are_equal(queries: int, answer: str) -> None:
    values = np.ones(queries)
    assert verdicts({"s": {"a": values}}, {"a": values}, RULE)["a"]["s"]["answer"] == answer
    worse = verdicts({"s": {"a": values * 0.5}}, {"a": values}, RULE)["a"]["s"]["answer"]
    assert worse == ("no" if answer == "yes" else answer)


def test_of_several_data_sets_the_upper_bounds_hold_together() -> None:
    student, teacher = paired(0.02, 0.2, 200)
    one = verdicts({"s": {"a": student}}, {"a": teacher}, RULE)["a"]["s"]
    both = verdicts({"s": {"a": student, "b": student}}, {"a": teacher, "b": teacher}, RULE)["b"]["s"]
    assert both["low"] == one["low"] and both["high"] > one["high"]


def test_a_data_set_where_the_teacher_finds_nothing_has_no_verdict() -> None:
    student, teacher = paired(0.001, 0.02, 200)
    both = verdicts({"s": {"a": student, "dark": student}}, {"a": teacher, "dark": 0 * teacher}, RULE)
    assert both == verdicts({"s": {"a": student}}, {"a": teacher}, RULE)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["yes", "yes"], "Yes."),
        (["yes", "cannot tell"], "Cannot tell from 1,000 queries."),
        (["no", "cannot tell"], "No."),
    ],
)
def test_one_no_is_no_and_yes_is_yes_on_all(answers: list[str], told: str) -> None:
    row = {"change": -0.01, "low": -0.02, "high": 0.001, "queries": 1000}
    metrics = {
        "verdict": {name: {"s": row | {"answer": answer}} for name, answer in zip("ab", answers, strict=True)},
        "like_for_like": {
            "b": {"s": {"alone": row | {"answer": "cannot tell"}, "both": row | {"answer": "cannot tell"}}}
        },
        "settings": {"margin": 0.005, "confidence": 0.95},
        "served": {"s": {"p50_ms": 2.8}, "teacher": {"p50_ms": 13.24}},
        "sizes": {"s": {"bytes": 2_000_000}, "teacher": {"bytes": 90_000_000}},
        "fused": {"b": {"s": {"carried": True, "bytes": 300_000}}},
        "queries": {"a": {}, "b": {}},
    }
    found = verdict_of(metrics, "s")
    assert found is not None and found.answer == told
    assert found.question == "May s (as served, with BM25 on b) replace the teacher?"
    assert found.lines[0] == (
        f"a: {answers[0]}, nDCG@10 -1.0% against the teacher's; with 95% confidence at worst -2.0%, at best +0.1%"
        " (allowed -0.5%, 1,000 queries)"
    )
    assert found.lines[2] == "b, the encoders alone: cannot tell, -1.0%; at worst -2.0%, at best +0.1%"
    assert found.lines[3] == "b, with BM25 beside both: cannot tell, -1.0%; at worst -2.0%, at best +0.1%"
    assert found.lines[4] == (
        "A query takes 2.80 ms from text to hits instead of 13.2; the query side has 2.0\u00a0MB instead of"
        " 90.0\u00a0MB, and its BM25 index 0.3\u00a0MB more"
    )
    api = {"sizes": {"s": {"bytes": 2_000_000}}}
    assert verdict_of(metrics | api, "s").lines[4] == (  # type: ignore[union-attr]
        "A query takes 2.80 ms from text to hits instead of 13.2; the query side has 2.0\u00a0MB, and its BM25 index"
        " 0.3\u00a0MB more; the teacher is behind an API"
    )
    metrics["like_for_like"]["b"]["s"]["both"]["answer"] = "no"  # type: ignore[index]
    better = "Yes, but a teacher with BM25 beside it is better."
    assert verdict_of(metrics, "s").answer == (better if told == "Yes." else told)  # type: ignore[union-attr]
    assert verdict_of({"verdict": {}}, "s") is None
