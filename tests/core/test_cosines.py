"""Cosines of matching rows, against float64 arithmetic written out."""

from math import fsum, sqrt

import numpy as np
import pytest

from steps.core.cosines import cosines


def by_hand(first: list[float], second: list[float]) -> float:
    products = fsum(a * b for a, b in zip(first, second, strict=True))
    return products / sqrt(fsum(a * a for a in first)) / sqrt(fsum(b * b for b in second))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_float32_rows_are_compared_in_float64(scale: float) -> None:
    """Squares of such rows leave the range of float32, and its sums would err in the seventh digit."""
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((50, 300))
    near, far = vectors + 1e-3 * generator.standard_normal(vectors.shape), generator.standard_normal(vectors.shape)
    for references in (near, far):
        first, second = ((rows * scale).astype(np.float32) for rows in (vectors, references))
        expected = [by_hand(*rows) for rows in zip(first.tolist(), second.tolist(), strict=True)]
        assert cosines(first, second) == pytest.approx(expected, rel=0, abs=1e-13)


def test_types_may_differ_rows_may_be_nothing_and_shapes_must_match() -> None:
    vectors, references = np.random.default_rng(4).standard_normal((2, 20, 16))
    first, second = vectors.astype(np.float16), references.astype(np.float32)
    expected = [by_hand(*rows) for rows in zip(first.tolist(), second.tolist(), strict=True)]
    assert cosines(first, second) == pytest.approx(expected, rel=0, abs=1e-13)
    zero, ones = np.zeros((1, 2), dtype=np.float32), np.ones((1, 2), dtype=np.float32)
    assert cosines(zero, zero).tolist() == [1.0]
    assert cosines(zero, ones).tolist() == cosines(ones, zero).tolist() == [0.0]
    assert np.isnan(cosines(zero, ones * np.nan)).all()
    with pytest.raises(ValueError, match="do not match"):
        cosines(np.zeros((1, 2)), np.zeros((2, 2)))
