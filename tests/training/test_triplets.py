"""Triplets are drawn by their weights."""

import numpy as np
import pytest

from steps.training.triplets import draw


def test_draw_keeps_items_in_proportion_to_their_weight() -> None:
    weights = np.repeat([1.0, 0.5, 0.25, 0.0], 20_000)
    kept = draw(weights, 10**9, seed=1)
    shares = np.bincount(kept // 20_000, minlength=4) / 20_000
    assert shares[0] == 1.0
    assert shares[1] == pytest.approx(0.5, abs=0.015)
    assert shares[2] == pytest.approx(0.25, abs=0.015)
    assert shares[3] == 0.0


def test_draw_keeps_proportions_under_the_limit_and_repeats_itself() -> None:
    weights = np.repeat([2.0, 1.0], 20_000)
    kept = draw(weights, 3000, seed=4)
    assert len(kept) == len(set(kept.tolist())) == 3000
    assert (kept < 20_000).mean() == pytest.approx(2 / 3, abs=0.03)
    assert kept.tolist() == draw(weights, 3000, seed=4).tolist()
    assert kept.tolist() != draw(weights, 3000, seed=5).tolist()


def test_draw_of_nothing_is_nothing() -> None:
    assert draw(np.zeros(0), 10, seed=0).size == 0
    assert draw(np.zeros(3), 10, seed=0).size == 0
