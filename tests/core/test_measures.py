"""Measures against arithmetic written out by hand."""

from math import log2

import numpy as np
import pytest
import pytrec_eval

from steps.core.measures import (
    best_hits,
    ndcg_at_10,
    ndcg_at_10_of_matrix,
    parse_measure,
    per_query,
    trec_order,
)

NO_MEASURES = "ndcg@10|R|R@0|R@5.5|R(foo=1)@5|ERR@20|NumRet|nDCG@10; x|@||R(2)@5|R(**{})@5|R(rel=x)@5|R@5@5"


def test_graded_queries_by_hand() -> None:
    # ranks: 1 miss, 2 grade 2, 3 miss, 4 grade 1, 5 grade 0; a third relevant document is not found
    grades = {"none": {"b": 1}, "some": {"a": 2, "b": 1, "c": 1, "z": 0}}
    rankings, scores = [["x", "a", "y", "b", "z"], []], [np.arange(5.0)[::-1], np.zeros(0)]
    values_by_measure = per_query(
        ["nDCG@10", "MRR@10", "MAP@1000", "Recall@5", "R@100"], grades, ["some", "none"], rankings, scores
    )
    dcg = 2 / log2(3) + 1 / log2(5)
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    expected = {
        "nDCG@10": dcg / ideal,
        "MRR@10": 1 / 2,
        "MAP@1000": (1 / 2 + 2 / 4) / 3,
        "Recall@5": 2 / 3,
        "R@100": 2 / 3,
    }
    for name, value in expected.items():
        assert values_by_measure[name] == pytest.approx([value, 0]), "in the order of the queries; without hits 0"


def test_the_order_is_by_score_then_by_id_for_any_ties() -> None:
    random = np.random.default_rng(3)
    for count in (0, 1, 2, 7, 50):
        for levels in (1, 3, 1000):
            ids = [f"d{number}" for number in random.permutation(count)]
            scores = random.integers(0, levels, count).astype(np.float32)
            expected = sorted(range(count), key=lambda at: (float(scores[at]), ids[at]), reverse=True)
            assert trec_order(ids, scores) == expected


def by_hand(grades: dict[str, int], ranked: list[str]) -> float:
    """nDCG@10 in float64; a negative grade gains nothing."""
    gains = [max(grades.get(doc, 0), 0) for doc in ranked[:10]]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:10]
    gained, best = (sum(gain / log2(rank) for rank, gain in enumerate(grades, start=2)) for grades in (gains, ideal))
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


@pytest.mark.medium
def test_measures_are_those_of_trec_eval_on_a_thousand_runs_with_ties() -> None:
    random = np.random.default_rng(2)
    docs = [f"d{number:02}" for number in range(60)]
    qrels, runs = {}, {}
    for number in range(1000):
        judged, hits = (
            random.permutation(docs)[: random.integers(1, 20)].tolist(),
            random.permutation(docs)[:50].tolist(),
        )
        qrels[f"q{number:03}"] = dict(zip(judged, random.integers(0, 4, len(judged)).tolist(), strict=True))
        runs[f"q{number:03}"] = dict(zip(hits, random.integers(0, 12, 50).astype(float).tolist(), strict=True))
    ids = list(qrels)
    doc_ids, scores = [list(runs[q]) for q in ids], [np.array(list(runs[q].values())) for q in ids]
    theirs = {
        "nDCG@10": "ndcg_cut_10", "nDCG@100": "ndcg_cut_100", "AP@1000": "map_cut_1000", "AP": "map",
        "RR": "recip_rank", "R@5": "recall_5", "R@100": "recall_100", "P@10": "P_10",
        "Success@5": "success_5", "Rprec": "Rprec", "Bpref": "bpref",
    }  # fmt: skip
    for relevant_from in (1, 2):
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(theirs.values()), relevance_level=relevant_from)
        expected = evaluator.evaluate(runs)
        values_by_measure = per_query([*theirs, "RR@10", "R(rel=3)@5"], qrels, ids, doc_ids, scores, relevant_from)
        for ours, name in theirs.items():
            assert values_by_measure[ours].tolist() == [expected[query][name] for query in ids], ours
        first = [expected[query]["recip_rank"] for query in ids]
        assert values_by_measure["RR@10"].tolist() == [value if value >= 1 / 10 else 0 for value in first]
        assert 0.05 < values_by_measure["R@5"].mean() < 0.9
    for at, query in enumerate(ids):  # by hand, ties by id from behind; the name's own grade goes before the data set's
        ranked = [doc_ids[at][position] for position in trec_order(doc_ids[at], scores[at])]
        good = {doc for doc, grade in qrels[query].items() if grade >= 3}
        assert values_by_measure["R(rel=3)@5"][at] == pytest.approx(len(good & set(ranked[:5])) / max(len(good), 1))


@pytest.mark.parametrize("name", NO_MEASURES.split("|"))
def test_what_trec_eval_does_not_compute_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no measure that trec_eval computes by query; possible are nDCG@k, RR@k"):
        parse_measure(name)


def test_the_best_hits_hold_all_that_tie_with_the_last() -> None:
    scores = np.array([[3.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    ids, values = best_hits(["a", "b", "c", "d"], scores, 3)
    assert [sorted(row) for row in ids] == [["a", "b", "c", "d"], ["a", "b", "c", "d"]]
    ids, values = best_hits(["a", "b", "c", "d"], scores[:1], 2)
    assert dict(zip(ids[0], values[0].tolist(), strict=True)) == {"a": 3.0, "d": 2.0}
    ids, values = best_hits([], np.zeros((2, 0)), 10)
    assert ids == [[], []] and [len(row) for row in values] == [0, 0]
