"""The vectors of the benchmark: neighbours of real vectors, neither copies nor strangers."""

from pathlib import Path

import numpy as np
import pytest
from index_vectors import clustered

from bench import vectors as bench


def test_perturbed_vectors_keep_near_their_document(tmp_path: Path) -> None:
    documents = np.eye(64, dtype=np.float32)[:8]
    bench.write_vectors(tmp_path / "vectors.npy", documents, 2000)
    vectors = np.load(tmp_path / "vectors.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    origin = (vectors @ documents.T).argmax(axis=1)
    siblings = vectors[origin == 0]
    cosines = (siblings @ siblings.T)[np.triu_indices(len(siblings), 1)]
    assert abs(cosines.mean() - 1 / (1 + bench.NOISE**2)) < 0.02
    again = tmp_path / "again.npy"
    bench.write_vectors(again, documents, 2000)
    assert again.read_bytes() == (tmp_path / "vectors.npy").read_bytes()


@pytest.mark.medium
def test_the_update_is_timed_as_the_whole_stage(tmp_path: Path) -> None:
    bench.write_vectors(tmp_path / "vectors.npy", clustered(50, 32), 1010)
    times = bench.update(tmp_path, "ivfflat", clustered(20, 32, seed=1))
    assert (times["vectors"], times["added"]) == (1000, 10)
    assert times["share"] > 0
    assert {"read_documents", "digests", "save", "updated_ids"} <= times["seconds_of"].keys()
