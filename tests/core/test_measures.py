"""Measures against arithmetic written out by hand."""

from math import log2

import numpy as np
import pytest

from steps.core.measures import (
    MEASURES,
    NDCG,
    UNCUT,
    best_hits,
    ndcg_at_10,
    ndcg_at_10_of_matrix,
    per_query,
    trec_order,
)


def one_query(grades: dict[str, int], ranking: list[str], scores: list[float] | None = None) -> dict[str, float]:
    given = scores or [float(len(ranking) - position) for position in range(len(ranking))]
    values = per_query({"q": grades}, ["q"], [ranking], [np.array(given, dtype=np.float32)])
    return {name: float(value[0]) for name, value in values.items()}


def test_graded_query_by_hand() -> None:
    # ranks: 1 miss, 2 grade 2, 3 miss, 4 grade 1; a third relevant document is not found
    found = one_query({"a": 2, "b": 1, "c": 1}, ["x", "a", "y", "b"])
    dcg = 2 / log2(3) + 1 / log2(5)
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert found["nDCG@10"] == pytest.approx(dcg / ideal)
    assert found["MRR@10"] == pytest.approx(1 / 2)
    assert found["MAP@1000"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert found["Recall@5"] == found["Recall@20"] == found["Recall@100"] == pytest.approx(2 / 3)


def test_cut_offs_fall_where_they_are_named() -> None:
    def at(rank: int) -> dict[str, float]:
        return one_query({"a": 1}, [f"x{number}" for number in range(1, rank)] + ["a"])

    assert at(5)["Recall@5"] == 1
    assert at(6)["Recall@5"] == 0
    assert at(10)["MRR@10"] == pytest.approx(1 / 10)
    assert at(10)["nDCG@10"] == pytest.approx(1 / log2(11))
    assert at(11)["MRR@10"] == at(11)["nDCG@10"] == 0
    assert at(11)[UNCUT] == pytest.approx(1 / 11)
    assert at(21)["Recall@20"] == 0
    assert at(100)["Recall@100"] == 1
    assert at(1000)["MAP@1000"] == pytest.approx(1 / 1000)


def test_ties_are_ordered_by_document_id_descending_in_every_measure() -> None:
    # all scores equal: trec_eval ranks c, b, a, whatever order the system gave
    found = one_query({"a": 1}, ["a", "b", "c"], [1.0, 1.0, 1.0])
    assert found["MRR@10"] == pytest.approx(1 / 3)
    assert found["MAP@1000"] == pytest.approx(1 / 3)
    assert found["nDCG@10"] == pytest.approx(1 / log2(4))
    assert trec_order(["a", "b", "c"], np.ones(3)) == [2, 1, 0]


def test_a_query_without_hits_counts_zero_and_order_is_kept() -> None:
    judgements = {"q2": {"a": 1}, "q1": {"b": 1}}
    values = per_query(judgements, ["q2", "q1"], [["a"], []], [np.ones(1), np.zeros(0)])
    for measure in MEASURES:
        assert values[measure].tolist() == [1.0, 0.0]


def test_grade_zero_is_not_relevant() -> None:
    assert one_query({"a": 0, "b": 1}, ["a", "b"])["MRR@10"] == pytest.approx(1 / 2)


def by_hand(grades: dict[str, int], ranked: list[str]) -> float:
    """nDCG@10 in float64; a negative grade gains nothing."""
    gains = [max(grades.get(doc, 0), 0) for doc in ranked[:10]]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:10]
    gained, best = (sum(gain / log2(rank) for rank, gain in enumerate(each, start=2)) for each in (gains, ideal))
    return gained / best if best else 0.0


def test_ndcg_of_rankings_and_of_a_matrix_is_that_of_the_formula_with_many_ties() -> None:
    random = np.random.default_rng(8)
    docs = [f"d{number:02}" for number in random.permutation(40)]
    scores = random.integers(0, 8, (50, 40)).astype(np.float32)  # five documents to a score
    qrels = {
        f"q{number:02}": {doc: int(random.integers(-1, 4)) for doc in random.permutation(docs)[: number % 20]}
        for number in range(50)
    }
    ids = list(qrels)
    expected = [
        by_hand(qrels[query], [docs[at] for at in trec_order(docs, row)])
        for query, row in zip(ids, scores, strict=True)
    ]
    assert 0.1 < np.mean(expected) < 0.9
    everything = [docs] * len(ids)
    np.testing.assert_allclose(ndcg_at_10(qrels, ids, everything, list(scores)), expected, atol=1e-9)
    np.testing.assert_allclose(ndcg_at_10_of_matrix(qrels, ids, docs, scores), expected, atol=1e-9)
    np.testing.assert_allclose(per_query(qrels, ids, everything, list(scores))[NDCG], expected, atol=1e-9)


def test_the_best_hits_hold_all_that_tie_with_the_last() -> None:
    scores = np.array([[3.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    ids, values = best_hits(["a", "b", "c", "d"], scores, 3)
    assert [sorted(row) for row in ids] == [["a", "b", "c", "d"], ["a", "b", "c", "d"]]
    ids, values = best_hits(["a", "b", "c", "d"], scores[:1], 2)
    assert dict(zip(ids[0], values[0].tolist(), strict=True)) == {"a": 3.0, "d": 2.0}
    ids, values = best_hits([], np.zeros((2, 0)), 10)
    assert ids == [[], []] and [len(row) for row in values] == [0, 0]
