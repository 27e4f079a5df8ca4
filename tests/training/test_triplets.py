"""Triplets are drawn by their weights, and train by turns."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from torch.utils.data import RandomSampler

from steps.training.library_trainer import ByTurns
from steps.training.triplets import Turns, draw


def test_every_item_trains_as_often_as_its_weight_says_whatever_the_epochs_before() -> None:
    random = np.random.default_rng(3)
    weights = np.concatenate([random.random(500), [0.5, 0.25, 1.0]])
    weights /= weights.max()
    _, turns = draw(weights, 10**9, seed=1)
    counts = np.zeros(len(weights))
    for epoch in range(40):
        counts[turns.rows(epoch)] += 1
        assert (np.abs(counts - (epoch + 1) * weights) < 1).all()
        assert turns.used(epoch + 1) == (counts > 0).sum()
    assert counts[-3:].tolist() == [20, 10, 40]


def test_an_epoch_begins_with_what_one_draw_keeps() -> None:
    weights = np.random.default_rng(0).random(1000)
    rows, turns = draw(weights, 0, seed=7)
    drawn_rows = np.flatnonzero(np.random.default_rng(7).random(1000) * weights.max() < weights)
    assert rows[turns.rows(0)].tolist() == drawn_rows.tolist()


def test_draw_keeps_proportions_under_the_limit_and_repeats_itself() -> None:
    weights = np.repeat([2.0, 1.0], 20_000)
    rows, turns = draw(weights, 3000, seed=4)
    assert turns.every and turns.rows(5).tolist() == list(range(3000))
    assert len(rows) == len(set(rows.tolist())) == 3000
    assert (rows < 20_000).mean() == pytest.approx(2 / 3, abs=0.03)
    assert rows.tolist() == draw(weights, 3000, seed=4)[0].tolist()
    assert rows.tolist() != draw(weights, 3000, seed=5)[0].tolist()
    assert draw(np.zeros(0), 10, seed=0)[0].size == draw(np.zeros(3), 10, seed=0)[0].size == 0


@pytest.mark.parametrize("distinct", [True, False])
def test_batches_hold_the_rows_whose_turn_it_is(distinct: bool) -> None:
    dataset = Dataset.from_dict({"query": [f"q{number}" for number in range(60)]})
    turns = Turns(np.repeat([1.0, 0.3], 30), np.random.default_rng(1).random(60))

    def make(rows: Dataset, generator: torch.Generator, **named: object) -> DefaultBatchSampler:
        if distinct:
            return NoDuplicatesBatchSampler(rows, generator=generator, **named)  # type: ignore[arg-type]
        return DefaultBatchSampler(RandomSampler(rows, generator=generator), generator=generator, **named)  # type: ignore

    def sampler() -> ByTurns:
        return ByTurns(dataset, turns, 4, make, batch_size=8, drop_last=False, generator=torch.Generator(), seed=5)

    orders = []
    for epoch in (2, 0, 1, 3):
        first_epoch = sampler()
        first_epoch.set_epoch(epoch)
        batches = list(first_epoch)
        assert (
            len(batches) >= len(first_epoch) == -(-max(len(turns.rows(epoch_number)) for epoch_number in range(4)) // 8)
        )
        assert sorted({row for batch in batches for row in batch}) == turns.rows(epoch).tolist()
        assert batches == list(first_epoch)  # a run that goes on sees the same
        orders.append(batches)
    assert orders[1] != orders[2]
