"""A limit is passed on evidence only: the test is a paired one-sided t-test, and noise seldom fails it."""

import numpy as np
import pytest
from scipy import stats

from steps.release.quality import measured_loss

LIMIT = 0.005


def queries(loss: float, spread: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values before and after a change that costs `loss` in truth, with differences that vary by `spread`."""
    random = np.random.default_rng(seed)
    before = random.uniform(0.4, 1.0, count)
    return before, before * (1 - loss) + random.normal(0, spread, count)


def test_the_p_value_is_that_of_the_t_distribution() -> None:
    before, after = queries(0.0064, 0.05, 600, 1)
    found = measured_loss(before, after, LIMIT)
    excess = [(1 - LIMIT) * b - a for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    mean = sum(excess) / 600
    deviation = (sum((each - mean) ** 2 for each in excess) / 599) ** 0.5
    assert found.p_value == pytest.approx(float(stats.t.sf(mean / (deviation / 600**0.5), 599)), rel=1e-9)
    assert found.share == pytest.approx(1 - after.mean() / before.mean())


@pytest.mark.medium
def test_a_true_loss_at_the_limit_is_called_proven_in_one_of_twenty_draws() -> None:
    proven = sum(measured_loss(*queries(LIMIT, 0.05, 200, seed), LIMIT).proven for seed in range(2000))
    assert 0.035 <= proven / 2000 <= 0.065


def test_a_large_loss_is_proven_and_a_little_one_over_the_line_is_not() -> None:
    assert measured_loss(*queries(0.05, 0.05, 600, 3), LIMIT).proven
    before, after = queries(0.0064, 0.05, 600, 4)
    after -= after.mean() - before.mean() * (1 - 0.0064)
    found = measured_loss(before, after, LIMIT)
    assert not found.within and not found.proven
    assert "0.64% of nDCG@10 on 600 dev queries" in str(found) and "is not proven" in str(found)


@pytest.mark.parametrize(
    ("before", "after", "proven"),
    [
        ([0.5], [0.1], False),  # one query proves nothing
        ([0.5, 0.5], [0.1, 0.1], True),  # nothing varies, and all is lost
        ([0.5, 0.5], [0.5, 0.5], False),
        ([0.0, 0.0], [0.0, 0.0], False),
    ],
)
def test_queries_without_variance(before: list[float], after: list[float], proven: bool) -> None:
    assert measured_loss(np.array(before), np.array(after), LIMIT).proven is proven
