"""Tests and overlaps against scipy's own, loops, and cases by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from steps.core.judged import JudgedSet
from steps.evaluate.comparing import bootstrap_p_value, holm
from steps.evaluate.figures.agreement import agreement, rank_biased_overlap
from steps.evaluate.gains import significance
from steps.evaluate.measuring import Result
from steps.evaluate.scoring import Scored, read_hits, write_hits


def test_holm_by_hand() -> None:
    # sorted: 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.9 x 1; none below the one before it, none above 1
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.medium
def test_the_bootstrap_is_scipys_and_near_the_t_test() -> None:
    random = np.random.default_rng(1)
    difference = random.normal(0.05, 0.4, 200)
    chance = bootstrap_p_value(difference, 20_000, 3)
    assert chance == pytest.approx(stats.ttest_1samp(difference, 0).pvalue, abs=0.01)
    resampled = stats.bootstrap(
        (difference - difference.mean(),), np.mean, n_resamples=20_000, rng=4
    ).bootstrap_distribution
    assert chance == pytest.approx((np.abs(resampled) >= abs(difference.mean())).mean(), abs=0.01)
    assert bootstrap_p_value(np.zeros(5), 100, 0) == 1
    assert bootstrap_p_value(np.full(5, 0.1), 99, 0) == pytest.approx(1 / 100)


def scored(dataset: str, **values: np.ndarray) -> Scored:
    count = len(next(iter(values.values())))
    judged = JudgedSet(dataset, "test", [f"q{at}" for at in range(count)], [""] * count, {})
    return Scored(judged, {name.replace("_at_", "@"): array for name, array in values.items()})


def test_a_family_is_one_measure_over_students_and_data_sets() -> None:
    random = np.random.default_rng(2)
    values = {name: random.random((2, 30)) for name in ("teacher", "a", "b")}
    values["b"][1] = values["teacher"][1] - 0.3 + random.normal(0, 0.1, 30)
    answers = {name: np.where(np.arange(30) < 10, random.random(30), np.nan) for name in values}
    results = {
        name: Result(
            name,
            [
                scored("one", nDCG_at_10=by_dataset[0], Answer_at_5=answers[name]),
                scored("two", nDCG_at_10=by_dataset[1]),
            ],
        )
        for name, by_dataset in values.items()
    }
    tests = significance(results.pop("teacher"), results, 200, 0)
    plain = {
        (dataset, name): stats.ttest_rel(values[name][at], values["teacher"][at]).pvalue
        for at, dataset in enumerate(("one", "two"))
        for name in ("a", "b")
    }
    for (dataset, name), expected in plain.items():
        assert tests[dataset][name]["nDCG@10"]["p_value"] == pytest.approx(expected)
    assert tests["two"]["b"]["nDCG@10"]["p_holm"] == pytest.approx(4 * plain["two", "b"])
    assert tests["two"]["b"]["nDCG@10"]["p_bootstrap"] == pytest.approx(1 / 201)
    assert "p_bootstrap" not in tests["one"]["a"]["Answer@5"]
    expected = stats.ttest_rel(answers["a"][:10], answers["teacher"][:10])
    assert tests["one"]["a"]["Answer@5"]["p_value"] == pytest.approx(expected.pvalue), "of queries with answers"
    assert "Answer@5" not in tests["two"]["a"]


def test_rank_biased_overlap_by_hand() -> None:
    p = 0.9
    # overlaps of the first 1, 2, 3: 0, 1, 3
    by_hand = 3 / 3 * p**3 + (1 - p) / p * (0 * p + 1 / 2 * p**2 + 3 / 3 * p**3)
    assert rank_biased_overlap(["a", "b", "c"], ["b", "c", "a"]) == pytest.approx(by_hand)
    # overlaps 1, 1, 2
    by_hand = 2 / 3 * p**3 + (1 - p) / p * (p + 1 / 2 * p**2 + 2 / 3 * p**3)
    assert rank_biased_overlap(["a", "b", "c"], ["a", "c", "d"]) == pytest.approx(by_hand)
    assert rank_biased_overlap(["a", "b"], ["a", "b"]) == pytest.approx(1)
    assert rank_biased_overlap(["a", "b"], ["c", "d"]) == 0
    assert (rank_biased_overlap([], []), rank_biased_overlap(["a"], [])) == (1, 0)


def test_agreement_is_read_from_run_files(tmp_path: Path) -> None:
    hits = {"teacher": [["s/a", "s/b", "s/c"], ["s/d"]], "student": [["s/b", "s/c", "s/a"], ["s/e"]]}
    for name, docs in hits.items():
        with (tmp_path / f"s.{name}.run").open("w", encoding="utf-8") as file:
            write_hits(file, "s", ["s/1", "s/2"], ([np.arange(len(row))[::-1] for row in docs], docs), name, 100)
    assert read_hits(tmp_path / "s.teacher.run") == {"1": ["a", "b", "c"], "2": ["d"]}
    by_dataset = agreement(tmp_path.iterdir(), "teacher", ["student"])
    rbo = rank_biased_overlap(["a", "b", "c"], ["b", "c", "a"])
    assert by_dataset == {"s": {"student": {"rbo": pytest.approx(rbo / 2), "overlap": 0.5}}}
