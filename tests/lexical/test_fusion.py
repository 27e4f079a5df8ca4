"""Fusion against its formulas in plain float64, ties by trec_eval's rule, and a choice that chance does not make."""

import itertools

import ir_measures
import numpy as np
import pytest
from ir_measures import nDCG

from slimtower.lexical.fusion import ReciprocalRank, WeightedSum, fuse, min_max, pooled
from steps.retrieval.lexical import GRID, STANDARD, chance_of, choose, trials

Hits = tuple[np.ndarray, list[str]]


def hits(**scores: float) -> Hits:
    """Hits of documents named by keywords, best first, as searches return them."""
    ids = sorted(scores, key=lambda doc: -scores[doc])
    return np.array([scores[doc] for doc in ids], np.float32), ids


def random_lists(seed: int, documents: int = 60, length: int = 40) -> list[Hits]:
    """Two lists with many equal scores, over documents of which each lacks a third."""
    generator = np.random.default_rng(seed)
    lists = []
    for _ in range(2):
        ids = [f"d{number}" for number in generator.permutation(documents)[:length]]
        lists.append(hits(**dict(zip(ids, generator.integers(1, 15, length) / 8, strict=True))))
    return lists


def ranked(hit_list: Hits, depth: int) -> list[tuple[str, float]]:
    """The first `depth` hits by trec_eval's rule: score, then id, both descending."""
    pairs = list(zip(hit_list[1][:depth], hit_list[0][:depth].tolist(), strict=True))
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]), reverse=True)


def by_ranks(lists: list[Hits], depth: int) -> dict[str, float]:
    total: dict[str, float] = {}
    for hit_list in lists:
        for rank, (doc, _) in enumerate(ranked(hit_list, depth), start=1):
            total[doc] = total.get(doc, 0.0) + 1 / (60 + rank)
    return total


def by_scores(lists: list[Hits], depth: int, weight: float) -> dict[str, float]:
    total: dict[str, float] = {}
    for hit_list, share in zip(lists, (weight, 1 - weight), strict=True):
        scores = dict(ranked(hit_list, depth))
        low, high = min(scores.values()), max(scores.values())
        for doc, score in scores.items():
            total[doc] = total.get(doc, 0.0) + share * (score - low) / (high - low)
    return total


@pytest.mark.parametrize("depth", [7, 100])
@pytest.mark.parametrize("seed", range(5))
def test_fused_lists_are_those_of_the_formulas_in_trec_evals_order(seed: int, depth: int) -> None:
    lists = random_lists(seed)
    pool = pooled(lists, depth)
    fusions: dict[ReciprocalRank | WeightedSum, dict[str, float]]
    fusions = {ReciprocalRank(depth=depth): by_ranks(lists, depth)}
    fusions |= {WeightedSum(depth=depth, weight=weight): by_scores(lists, depth, weight) for weight in (0.0, 0.3, 1.0)}
    for fusion, expected in fusions.items():
        scores, ids = fuse(pool, fusion, 1000)
        assert dict(zip(ids, scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-6)
        assert (
            ids == [doc for doc, _ in sorted(zip(ids, scores.tolist(), strict=True), key=lambda p: (p[1], p[0]))][::-1]
        )
        assert fuse(pool, fusion, 5)[1] == ids[:5]


def test_lists_without_hits_or_of_one_score_are_fused_too() -> None:
    nothing: Hits = (np.zeros(0, np.float32), [])
    for fusion in (ReciprocalRank(depth=3), WeightedSum(depth=3, weight=0.4)):
        assert fuse(pooled([nothing, nothing], 3), fusion, 5)[1] == []
        assert fuse(pooled([hits(a=0.9, b=0.1), nothing], 3), fusion, 5)[1] == ["a", "b"]
        assert fuse(pooled([nothing, hits(a=5.0)], 3), fusion, 5)[1] == ["a"]
    assert min_max(np.array([2.0, -np.inf, 2.0])).tolist() == [1.0, 0.0, 1.0]
    assert min_max(np.array([-np.inf])).tolist() == [0.0]


def values_of(seed: int, gain: float, queries: int = 60) -> np.ndarray:
    """nDCG@10 that differs from query to query, and the same for every fusion but for noise and a gain."""
    generator = np.random.default_rng(seed)
    alone = generator.uniform(0.2, 0.8, queries)
    return np.vstack([alone, alone + gain + generator.normal(0, 0.1, (len(GRID), queries))])


@pytest.mark.medium
def test_a_grid_does_not_win_by_its_size() -> None:
    wins = [choose(values_of(seed, 0.0)).wins for seed in range(100)]
    assert np.mean(wins) <= 0.05
    naive = [values_of(seed, 0.0) for seed in range(100)]
    best = [(v[1:][v[1:].mean(axis=1).argmax()] - v[0]).mean() > 2 * 0.1 / 60**0.5 for v in naive]
    assert np.mean(best) > 0.2, "the best of the grid on the queries that chose it would often seem to win"
    assert all(choose(values_of(seed, 0.06)).wins for seed in range(5))
    assert not choose(values_of(1, -0.2)).wins


def test_equal_fusions_are_the_simplest_and_shallowest() -> None:
    values = np.full((1 + len(GRID), 12), 0.5)
    choice = choose(values)
    assert (choice.fusion, choice.p_value, choice.wins) == (STANDARD, 1.0, False)
    assert not choose(np.vstack([values[:1], values[1:] + 0.1])[:, :1]).wins, "one query proves nothing"
    assert choose(np.vstack([values[:1], values[1:] + 0.1])).wins


def test_the_chance_of_one_row_is_that_of_all_its_flips() -> None:
    row = np.array([0.3, 0.1, -0.05, 0.2, 0.0, 0.4, -0.1, 0.15])
    sums = [(np.array(signs) * row).sum() for signs in itertools.product((-1, 1), repeat=8)]
    exact = np.mean(np.array(sums) >= row.sum() - 1e-12)
    assert chance_of(row[None], 0) == pytest.approx(exact, abs=0.01)
    assert chance_of(np.stack([row, row]), 1) == chance_of(row[None], 0), "twins count once"


def test_trials_measure_what_a_search_would_return() -> None:
    names = [f"q{number}" for number in range(4)]
    lists = [random_lists(number) for number in range(4)]
    qrels = {name: {f"d{n}": n % 4 - 1 for n in range(at, 60, 3)} for at, name in enumerate(names)}
    dense, lexical = (tuple(zip(*(pair[side] for pair in lists), strict=True)) for side in (0, 1))
    values = trials(qrels, names, dense, lexical)  # type: ignore[arg-type]
    assert values.shape == (1 + len(GRID), 4)
    judged = [ir_measures.Qrel(name, doc, grade) for name in names for doc, grade in qrels[name].items()]
    for row, fusion in zip(values, [None, *GRID], strict=True):
        run = []
        for name, pair in zip(names, lists, strict=True):
            scores, ids = fuse(pooled(pair, fusion.depth), fusion, 60) if fusion else pair[0]
            run += [ir_measures.ScoredDoc(name, doc, float(score)) for doc, score in zip(ids, scores, strict=True)]
        assert row.mean() == pytest.approx(ir_measures.calc_aggregate([nDCG @ 10], judged, run)[nDCG @ 10])
