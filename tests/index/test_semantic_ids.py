"""Semantic IDs: residual k-means, level by level."""

import faiss
import numpy as np
import pytest
from index_vectors import all_of, clustered

from steps.index.build import trained
from steps.index.semantic_ids import codebooks, semantic_ids


@pytest.fixture(autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)


def test_errors_are_those_of_the_reconstruction() -> None:
    matrix = clustered(1000)
    books = codebooks(matrix, 4, 16, seed=1)
    ids = semantic_ids(all_of(matrix), books)
    exact = matrix.astype(np.float64)
    rebuilt = np.zeros_like(exact)
    for level, book in enumerate(books):
        residual = exact - rebuilt
        distances = ((residual[:, None] - book[None].astype(np.float64)) ** 2).sum(axis=2)
        chosen = np.take_along_axis(distances, ids.codes[:, level : level + 1].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(chosen, distances.min(axis=1), atol=1e-5)  # each code is a nearest centroid
        rebuilt += book[ids.codes[:, level]]
        assert ids.errors()[level] == pytest.approx(((exact - rebuilt) ** 2).sum() / (exact**2).sum(), rel=1e-4)
    assert ids.errors() == sorted(ids.errors(), reverse=True)
    assert ids.codes.dtype == np.int16


def test_codes_shrink_to_what_the_sample_can_train() -> None:
    matrix = clustered(100)
    ids = semantic_ids(all_of(matrix), codebooks(matrix, 3, 256, seed=1))
    assert ids.books.shape == (3, 2, 32) and ids.codes.max() == 1
    assert semantic_ids(all_of(matrix[:5]), codebooks(matrix[:5], 2, 256, seed=1)).codes.tolist() == [[0, 0]] * 5


def test_equal_documents_share_their_id() -> None:
    matrix = np.repeat(clustered(200), 2, axis=0)
    ids = semantic_ids(all_of(matrix), codebooks(matrix, 6, 8, seed=1))
    np.testing.assert_array_equal(ids.codes[::2], ids.codes[1::2])
    assert ids.distinct_share() <= 0.5


@pytest.mark.slow
def test_every_seed_that_params_allow_draws_and_fixes_the_codebooks() -> None:
    matrix = clustered(1000)
    seeds = [1, 2, 2**31 - 1, 2**31, 2**32 - 1]
    once, again = ([codebooks(matrix, 2, 4, seed=seed) for seed in seeds] for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once[0], once[1])
    for seed in seeds:
        assert trained("IVF8,PQ8x4", all_of(matrix), 1000, seed).index().is_trained
