"""Search in blocks finds what a whole product finds."""

import numpy as np
import pytest

from steps.retrieval import exact_search
from steps.retrieval.exact_search import best_documents


@pytest.mark.parametrize("block", [3, 7, 100])
@pytest.mark.parametrize("rows", [None, [1, 2, 5, 6, 7, 8, 11, 19]])
def test_blocks_give_the_best_of_the_whole_product(
    block: int, rows: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_search, "_DOCUMENTS", block)
    monkeypatch.setattr(exact_search, "_QUERIES", 2)
    random = np.random.default_rng(3)
    queries, documents = (random.standard_normal((count, 5)).astype(np.float32) for count in (5, 20))
    scores, hits = best_documents(queries, documents, 6, None if rows is None else np.array(rows))
    product = queries.astype(np.float64) @ documents.astype(np.float64).T
    left_out = [row for row in range(20) if rows is not None and row not in rows]
    product[:, left_out] = -np.inf
    expected = np.argsort(-product, axis=1)[:, :6]
    assert hits.tolist() == expected.tolist()
    assert scores == pytest.approx(np.take_along_axis(product, expected, axis=1), abs=1e-5)


def test_by_cosine_lengths_do_not_count() -> None:
    random = np.random.default_rng(4)
    queries, documents = (random.standard_normal((count, 5)) for count in (4, 30))
    documents *= random.uniform(0.1, 10, (30, 1))
    scores, rows = best_documents(queries, documents.astype(np.float16), 5, cosine=True)
    stored = documents.astype(np.float16).astype(np.float64)
    products = queries @ (stored / np.linalg.norm(stored, axis=1, keepdims=True)).T
    assert rows.tolist() == np.argsort(-products, axis=1)[:, :5].tolist()
    assert scores == pytest.approx(np.take_along_axis(products, rows, axis=1), abs=1e-5)


def test_no_more_than_there_are() -> None:
    ones = np.ones((3, 2), dtype=np.float32)
    scores, rows = best_documents(ones[:2], ones, 10)
    assert scores.shape == rows.shape == (2, 3)
    assert best_documents(ones, ones[:0], 10)[1].shape == (3, 0)
    assert best_documents(ones[:0], ones, 2)[1].shape == (0, 2)
