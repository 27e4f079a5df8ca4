"""Vectors that say nothing stop `embed`; small corpora, equal texts and narrow models do not."""

from collections.abc import Callable

import numpy as np
import pytest

from slimtower.common.errors import UserError
from steps.embed.spread import check_spread, drawn_rows

TEXTS = [f"text number {row}" for row in range(200)]
RANDOM = np.random.default_rng(0)
Vectors = Callable[[int], np.ndarray]


def around(noise: float) -> Vectors:
    """Vectors about one direction."""
    return lambda count: np.ones((count, 16)) + noise * RANDOM.normal(size=(count, 16))


def by_length(count: int) -> np.ndarray:
    """Of texts of unknown words: a vector for each length."""
    return RANDOM.normal(size=(8, 16))[np.arange(count) % 8]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("vectors", [around(0), around(1e-3), by_length, lambda count: np.zeros((count, 16))])
def test_vectors_that_say_nothing_are_refused(vectors: Vectors, dtype: type) -> None:
    with pytest.raises(UserError, match="say nothing: the teacher dense"):
        check_spread(vectors(200).astype(dtype), TEXTS, "documents", "dense")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("vectors", [around(0.03), around(10)])
def test_narrow_and_wide_models_pass(vectors: Vectors, dtype: type) -> None:
    check_spread(vectors(200).astype(dtype), TEXTS, "documents", "dense")


def test_few_texts_and_equal_texts_pass() -> None:
    check_spread(np.ones((9, 16)), TEXTS[:9], "documents", "dense")
    check_spread(np.ones((200, 16)), ["The same text", "the same text!"] * 100, "documents", "dense")
    repeated = np.concatenate([around(1)(50)] * 4)
    check_spread(repeated, TEXTS[:50] * 4, "documents", "dense")


def test_a_sample_is_drawn_by_seed() -> None:
    assert drawn_rows(5, 0).tolist() == [0, 1, 2, 3, 4]
    many = drawn_rows(50_000, 1)
    assert len(set(many.tolist())) == 1000 and (np.diff(many) > 0).all() and (many == drawn_rows(50_000, 1)).all()
