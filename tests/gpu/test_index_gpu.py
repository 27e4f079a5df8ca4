"""The stage `index` on a GPU gives what it gives without one. Needs the gpu lock's faiss (`pytest -m gpu`)."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from index_vectors import all_of, clustered, exact_top, target_of

from steps.index import gpu, tuning
from steps.index.build import fill, trained, write_shards
from steps.index.gpu import inverted_lists
from steps.index.params import Kind, of_kind
from steps.index.semantic_ids import codebooks, semantic_ids
from steps.index.tuning import tune

pytestmark = pytest.mark.gpu
DIM, COUNT = 32, 5000
KINDS: list[Kind] = ["ivfflat", "ivfpq", "hnsw", "sq8", "binary"]
MATRIX, QUERIES = clustered(COUNT, DIM), clustered(100, DIM, seed=1)


@pytest.fixture(autouse=True)
def one_gpu() -> None:
    assert faiss.get_num_gpus() > 0, "faiss sees no GPU: install the gpu lock on a machine that has one"
    faiss.omp_set_num_threads(1)


def built(factory: str) -> faiss.Index:
    return fill(trained(factory, all_of(MATRIX), 10**6, 3), all_of(MATRIX)).index()


@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
def test_scans_are_exact(metric: int) -> None:
    hits, expected = gpu.knn(QUERIES, MATRIX, 10, metric), faiss.knn(QUERIES, MATRIX, 10, metric=metric)
    np.testing.assert_allclose(hits[0], expected[0], atol=1e-5)
    assert np.mean(hits[1] == expected[1]) > 0.999


def test_the_exact_hits_are_those_of_float64() -> None:
    assert np.mean(tuning.exact_top(all_of(MATRIX), QUERIES, 10).rows == exact_top(MATRIX, QUERIES)) > 0.999


@pytest.mark.parametrize(
    "factory",
    [
        *(of_kind(kind, COUNT, DIM) for kind in KINDS),
        *("IVF40,SQ8", "IVF40,PQ8x8np", "OPQ8_32,IVF40,PQ8x8np,RFlat", "L2norm,IVF40,Flat"),
    ],
)
def test_what_is_built_there_is_searched_here(factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(MATRIX, QUERIES)
    index = built(factory)
    tuned = tune(index, target, 0.95)
    write_shards(tmp_path, "ann", iter([index]), several=False)
    monkeypatch.setattr(gpu, "seen", lambda: False)
    here = built(factory)
    alone = tune(here, target, 0.95)
    assert tuned.met == alone.met and tuned.recall == pytest.approx(alone.recall, abs=0.03)
    loaded = faiss.read_index(str(tmp_path / "ann.faiss"))  # a CPU index at the settings tuned on the GPU
    assert isinstance(loaded, type(here)) and loaded.ntotal == len(MATRIX)
    assert target.recall(loaded.search(QUERIES, 10)[1]) == pytest.approx(tuned.recall, abs=0.01)


def test_the_seed_fixes_the_centroids_and_they_come_back() -> None:
    indexes = [built("IVF40,Flat") for _ in range(2)]
    once, again = (faiss.downcast_index(inverted_lists(index).quantizer) for index in indexes)
    assert isinstance(once, faiss.IndexFlat)
    np.testing.assert_allclose(once.reconstruct_n(0, 40), again.reconstruct_n(0, 40), atol=1e-5)


def test_semantic_ids_leave_as_little_over() -> None:
    there = semantic_ids(all_of(MATRIX), codebooks(MATRIX, 3, 64, seed=1)).errors()
    expected, rest = [], MATRIX.copy()
    for level in range(3):
        clustering = faiss.Kmeans(DIM, 64, niter=20, seed=1 + level)
        clustering.train(rest)
        rest = rest - clustering.centroids[clustering.index.search(rest, 1)[1][:, 0]]
        expected.append(float(np.square(rest).sum() / np.square(MATRIX).sum()))
    np.testing.assert_allclose(there, expected, rtol=0.02)
