"""faiss indexes: exact is exact, approximate is measured, small collections get what they can train."""

import numpy as np
import pytest

from steps.core.errors import UserError
from steps.core.params.index import IvfPqParams
from steps.index.build import flat, ivfpq, ivfpq_factory, recall

PARAMS = IvfPqParams(lists=128, subquantizers=8, bits=8, probes=16)


def unit_vectors(count: int, width: int = 32) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_flat_ranks_by_inner_product() -> None:
    vectors, queries = unit_vectors(200), unit_vectors(5)
    scores, rows = flat(vectors).search(queries, 7)
    expected = queries.astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :7], atol=1e-6)
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "factory"),
    [(20, "IVF1,PQ8x1"), (1000, "IVF25,PQ8x4"), (9984, "IVF128,PQ8x8"), (10**7, "IVF128,PQ8x8")],
)
def test_lists_and_bits_shrink_with_the_collection(count: int, factory: str) -> None:
    assert ivfpq_factory(count, 32, PARAMS) == factory


def test_a_width_that_cannot_be_split_names_a_divisor() -> None:
    with pytest.raises(UserError, match=r"subquantizers is 8, which does not divide the embedding width 30.*such as"):
        ivfpq_factory(1000, 30, PARAMS)


def test_more_probes_find_more_and_the_seed_fixes_the_index() -> None:
    vectors, queries = unit_vectors(2000), unit_vectors(50)
    exact = flat(vectors)
    factory = ivfpq_factory(len(vectors), 32, PARAMS)
    few, many, again = (ivfpq(vectors, factory, probes, 1000, seed=1) for probes in (1, 51, 51))
    assert recall(few, exact, queries) < recall(many, exact, queries)
    np.testing.assert_array_equal(many.search(queries, 10)[1], again.search(queries, 10)[1])


def test_recall_by_hand() -> None:
    vectors = np.eye(4, dtype=np.float32)
    other = flat(vectors[[0, 1]])
    # the exact top 4 are all rows; the other index knows rows 0 and 1 only
    assert recall(other, flat(vectors), vectors[:1], k=4) == 0.5
