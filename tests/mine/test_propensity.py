"""Click propensities against plain loops and against logs simulated with known propensities."""

from collections import defaultdict

import numpy as np
import pytest

from slimtower.common.errors import UserError
from steps.mine.propensity import Propensities, estimate, inverse_weights

RANKS = 10
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # shown, clicks, pair, rank


def simulated(seed: int, pairs: int, impressions: int, propensities: np.ndarray, ranked_by_attraction: bool) -> Rows:
    """Single impressions of a position-based log; an able ranker puts attractive pairs higher, with some noise."""
    draw = np.random.default_rng(seed)
    attraction = draw.beta(1.2, 1.8, pairs)
    pair = np.repeat(np.arange(pairs), 1 + draw.poisson(impressions - 1, pairs))
    if ranked_by_attraction:
        position = np.argsort(np.argsort(-attraction)) / pairs * (RANKS - 1) + 1
        rank = np.clip(np.rint(position[pair] + draw.normal(0, 2.5, len(pair))), 1, RANKS).astype(np.int64)
    else:
        rank = draw.integers(1, RANKS + 1, len(pair))
    clicks = (draw.random(len(pair)) < attraction[pair] * propensities[rank - 1]).astype(np.int64)
    return np.ones(len(pair), np.int64), clicks, pair, rank


def rows(*counts: tuple[int, int, int, int]) -> Rows:
    """(pair, rank, shown, clicks) as the arguments of `estimate`."""
    pair, rank, impressions, clicks = (np.array(column, np.int64) for column in zip(*counts, strict=True))
    return impressions, clicks, pair, rank


def fitted(log: Rows, iterations: int = 500, tolerance: float = 1e-9, max_rank: int = RANKS) -> Propensities:
    return estimate(*log, iterations=iterations, tolerance=tolerance, max_rank=max_rank)


def plain_pairs(log: Rows, max_rank: int) -> list[dict[int, tuple[int, int]]]:
    """For each pair that informs: rank -> (shown, clicks)."""
    table: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for impressions, clicks, pair, rank in zip(*(column.tolist() for column in log), strict=True):
        previous = table[pair].get(min(rank, max_rank), (0, 0))
        table[pair][min(rank, max_rank)] = (previous[0] + impressions, previous[1] + clicks)
    return [seen for seen in table.values() if len(seen) > 1 and any(clicks for _, clicks in seen.values())]


def plain_step(pairs: list[dict[int, tuple[int, int]]], values: list[float]) -> list[float]:
    """One step by loops: clicks at a rank over the sum of clicks * shown / (sum of shown * propensity) of its pairs."""
    raised = []
    for rank in range(1, len(values) + 1):
        clicks, weight = 0, 0.0
        for seen in pairs:
            if rank in seen:
                clicks += seen[rank][1]
                total = sum(count for _, count in seen.values())
                expected = sum(impressions * values[r - 1] for r, (impressions, _) in seen.items())
                weight += total * seen[rank][0] / expected
        raised.append(clicks / weight)
    return [value / raised[0] for value in raised]


@pytest.fixture(scope="module")
def small() -> Rows:
    return simulated(5, 300, 4, (1 / np.arange(1, RANKS + 1)) ** 0.5, False)


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_equal_plain_loops(small: Rows, steps: int) -> None:
    pairs = plain_pairs(small, max_rank=6)
    expected = [1.0] * 6
    for _ in range(steps):
        expected = plain_step(pairs, expected)
    propensities = fitted(small, iterations=steps, tolerance=0.0, max_rank=6)
    assert propensities.values == pytest.approx(expected, rel=1e-12)
    assert (propensities.iterations, propensities.pairs_used) == (steps, len(pairs))


def test_it_ends_where_expected_clicks_are_the_clicks(small: Rows) -> None:
    """There the gradient of the likelihood, which is concave, is zero."""
    fit = fitted(small)
    assert fit.iterations < 500
    for rank in range(1, RANKS + 1):
        clicks, expected = 0, 0.0
        for seen in plain_pairs(small, RANKS):
            if rank in seen:
                total = sum(impressions * fit.values[r - 1] for r, (impressions, _) in seen.items())
                clicks += seen[rank][1]
                expected += sum(c for _, c in seen.values()) * seen[rank][0] * fit.values[rank - 1] / total
        assert expected == pytest.approx(clicks, rel=1e-6)


def test_result_is_the_same_to_the_bit_in_any_order_of_rows_and_when_rows_are_added_up(small: Rows) -> None:
    impressions, clicks, pair, rank = small
    order = np.random.default_rng(0).permutation(len(pair))
    keys, row = np.unique(pair * RANKS + rank - 1, return_inverse=True)
    counted = [np.bincount(row, column).astype(np.int64) for column in (impressions, clicks)]
    first = fitted(small)
    shuffled = fitted((impressions[order], clicks[order], pair[order], rank[order]))
    added_up = fitted((counted[0], counted[1], keys // RANKS, keys % RANKS + 1))
    assert first.values.tolist() == shuffled.values.tolist() == added_up.values.tolist()


@pytest.mark.medium
@pytest.mark.parametrize("exponent", [1.0, 0.5])
@pytest.mark.parametrize("ranked_by_attraction", [False, True])
def test_recovers_known_propensities_of_every_large_log(exponent: float, ranked_by_attraction: bool) -> None:
    """A log of 2,000 pairs has about 80 clicks at rank 10: those alone scatter by more than 10 %."""
    true = (1 / np.arange(1, RANKS + 1)) ** exponent
    for seed in range(2):
        fit = fitted(simulated(seed, 60_000, 10, true, ranked_by_attraction), tolerance=1e-6)
        assert fit.values == pytest.approx(true, rel=0.10)


@pytest.mark.medium
@pytest.mark.parametrize(("exponent", "impressions"), [(1.0, 3), (0.5, 5), (1.0, 10), (0.5, 30)])
def test_few_impressions_a_pair_do_not_bias_the_estimate(exponent: float, impressions: int) -> None:
    """On average over logs of at least 2,000 pairs and 20,000 impressions."""
    true = (1 / np.arange(1, RANKS + 1)) ** exponent
    pairs = 20_000 // min(impressions, 10)
    logs = [simulated(seed, pairs, impressions, true, False) for seed in range(24)]
    mean = np.mean([fitted(log, tolerance=1e-6).values for log in logs], axis=0)
    assert mean == pytest.approx(true, rel=0.10)


def test_a_rank_may_be_looked_at_more_than_rank_1() -> None:
    fit = fitted(rows((0, 1, 100, 20), (0, 2, 100, 40), (1, 2, 50, 10), (1, 3, 50, 5)), max_rank=3)
    assert fit.values == pytest.approx([1, 2, 1])


def test_uninformative_pairs_change_nothing_and_ranks_beyond_the_last_are_pooled() -> None:
    core = [(0, 1, 10, 4), (0, 2, 10, 2), (1, 2, 8, 3), (1, 3, 8, 1)]
    noise = [(2, 1, 9, 9), (3, 1, 5, 0), (3, 2, 5, 0), (4, 7, 5, 2), (4, 3, 5, 2)]
    fit = fitted(rows(*core, *noise), max_rank=3)
    assert fit.values.tolist() == fitted(rows(*core), max_rank=3).values.tolist()
    assert fit.pairs_used == 2


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (rows((0, 1, 5, 2), (0, 2, 5, 1), (1, 3, 5, 1), (1, 4, 5, 1)), "rank 3, 4 with rank 1"),
        (rows((0, 1, 5, 2), (0, 2, 5, 1), (1, 3, 5, 1)), "rank 3, 4 with rank 1"),  # 3 shares no result, 4 is not shown
        (rows((0, 1, 5, 2), (0, 2, 5, 1), (1, 1, 5, 1), (1, 3, 5, 0), (1, 4, 5, 1)), "rank 3 with"),  # never clicked
        (rows((0, 1, 5, 0), (0, 2, 5, 1), (0, 3, 5, 1), (0, 4, 5, 1)), "rank 2, 3, 4 with rank 1"),  # 1 never clicked
        (rows((0, 2, 5, 1), (0, 3, 5, 1), (0, 4, 5, 1)), "rank 2, 3, 4 with rank 1"),
        (rows((0, 1, 5, 2), (1, 2, 5, 1)), "no clicked result of the log was shown at two ranks"),
        (tuple(np.empty(0, np.int64) for _ in range(4)), "no clicked result of the log was shown at two ranks"),
    ],
)
def test_ranks_not_tied_to_rank_1_are_named(log: Rows, message: str) -> None:
    with pytest.raises(UserError, match=f"^mine.debias.method: .*{message}"):
        fitted(log, max_rank=4)


def test_inverse_weights_are_clipped() -> None:
    weights = inverse_weights(Propensities(np.array([1.0, 0.5, 0.01, 1.25]), 1, 1), clip=20.0)
    assert weights.tolist() == [1.0, 2.0, 20.0, 0.8]
