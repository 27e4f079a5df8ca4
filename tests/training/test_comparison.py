"""What a person is told of a model beside what was there before it."""

import numpy as np
import pytest

from steps.training.comparison import describe_gain, is_better

BEFORE = np.random.default_rng(1).random(60)


@pytest.mark.parametrize(
    ("gain", "spread", "said"),
    [
        (0.2, 0.1, "it beats BM25"),
        (0.02, 0.5, "it ranks better than BM25, which on 60 queries may be chance"),
        (-0.2, 0.1, "WARNING: it does not rank better than BM25; leave it out"),
        (0.0, 0.0, "WARNING: it does not rank better than BM25; leave it out"),
    ],
)
def test_only_what_ranks_no_better_is_warned_of(gain: float, spread: float, said: str) -> None:
    noise = np.random.default_rng(2).normal(size=60)
    after = BEFORE + gain + spread * (noise - noise.mean())
    better = is_better(BEFORE, after)
    assert describe_gain("it", "BM25", after.mean() > BEFORE.mean(), better, 60, "leave it out").startswith(said)
