"""Search in blocks finds what a whole product finds."""

import numpy as np
import pytest

from steps.core import exact_search
from steps.core.exact_search import best_documents


@pytest.mark.parametrize("block", [3, 7, 100])
def test_blocks_give_the_best_of_the_whole_product(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "_DOCUMENTS", block)
    monkeypatch.setattr(exact_search, "_QUERIES", 2)
    random = np.random.default_rng(3)
    queries, documents = (random.standard_normal((rows, 5)).astype(np.float32) for rows in (5, 20))
    scores, rows = best_documents(queries, documents, 6)
    product = queries.astype(np.float64) @ documents.astype(np.float64).T
    expected = np.argsort(-product, axis=1)[:, :6]
    assert rows.tolist() == expected.tolist()
    assert scores == pytest.approx(np.take_along_axis(product, expected, axis=1), abs=1e-5)


def test_equal_scores_keep_the_order_of_the_documents_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "_DOCUMENTS", 2)
    assert best_documents(np.ones((1, 2)), np.ones((5, 2)), 4)[1].tolist() == [[0, 1, 2, 3]]


def test_no_more_than_there_are() -> None:
    scores, rows = best_documents(np.ones((2, 2)), np.ones((3, 2)), 10)
    assert scores.shape == rows.shape == (2, 3)
    assert best_documents(np.ones((2, 2)), np.zeros((0, 2)), 10)[1].shape == (2, 0)
