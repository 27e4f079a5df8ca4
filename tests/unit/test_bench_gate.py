"""The gate's error rates: what the benchmark draws is as worse or better as it says, and judged as promotion judges."""

import numpy as np
import pytest
from promote_stand_ins import evidence, policy

from bench.gate import DRAWS, SEED, accepted, tilted
from steps.promote.gate import decide


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    """1,200 queries like the demo's: most nDCG@10 equal, some won, more lost; candidate and champion."""
    generator = np.random.default_rng(1)
    levels = np.array([0.0, 0.3, 0.43, 0.5, 0.63, 1.0])
    champion = levels[generator.choice(6, 1200, p=[0.2, 0.05, 0.05, 0.1, 0.1, 0.5])]
    candidate = np.where(generator.random(1200) < 0.1, levels[generator.choice(6, 1200)], champion)
    return candidate, champion


@pytest.mark.parametrize("change", [-0.01, 0.0, 0.01, 0.1])
def test_tilting_gives_exactly_the_change_that_was_asked_for(pair, change: float) -> None:
    candidate, champion = pair
    chances = tilted(candidate, champion, change)
    assert chances.sum() == pytest.approx(1)
    assert chances @ candidate == pytest.approx((1 + change) * (chances @ champion), rel=1e-9)


def test_one_percent_worse_is_refused_and_one_percent_better_accepted(pair) -> None:
    candidate, champion = pair
    rules = policy()
    sampling = 1.645 * np.sqrt(0.05 * 0.95 / DRAWS)
    for queries in (300, 1704):
        assert accepted(candidate, champion, -0.01, queries, rules) <= 0.05 + sampling
    assert accepted(candidate, champion, 0.01, 1704, rules) >= 0.8


def test_the_share_is_that_of_decisions(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, champion = pair
    monkeypatch.setattr("bench.gate.DRAWS", 40)
    rules = policy()
    rows = np.random.default_rng(SEED).choice(1200, (60, 40), p=tilted(candidate, champion, 0.01))
    decisions = [decide(evidence(candidate[draw]), evidence(champion[draw]), rules).approved for draw in rows.T]
    assert 0 < sum(decisions) < 40
    assert accepted(candidate, champion, 0.01, 60, rules) == sum(decisions) / 40
