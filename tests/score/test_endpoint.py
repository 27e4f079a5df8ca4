"""A model behind an API scores over the index of an old one: its own inner products, each text paid for once."""

from pathlib import Path

import numpy as np
import pytest
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import teach
from stages import corpus_texts, run_score
from towers import other_weights

from steps.core.tables import read_table
from steps.encoders.towers import load_tower
from steps.endpoint.module import PROBES

pytestmark = pytest.mark.medium


def test_its_scores_are_the_models_there_and_each_text_is_paid_for_once(
    tiny_tower: Path, linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new model behind the API has other weights than those that made the index."""
    monkeypatch.setenv("PLANTED_KEY", KEY)
    other_weights(tiny_tower, linked / "new", 5)
    model = load_tower(linked / "new")
    with serving(tower_reader(model)) as server:
        teach(linked / "models/teach/rented", server)
        scores = read_table(run_score(linked, "rented"), "scores")["score"].to_numpy()
        requests = len(server.bodies)
        run_score(linked, "rented")
        assert len(server.bodies) == requests
    texts = read_table(linked / "data/embed", "alignment_texts")["text"].to_pylist()
    documents = corpus_texts(linked)
    query_vectors, document_vectors = (
        model.encode(side, normalize_embeddings=True).astype(np.float64) for side in (texts, documents)
    )
    nearest = np.load(linked / "data/embed/nearest.npy")
    expected = np.stack([document_vectors[rows] @ vector for rows, vector in zip(nearest, query_vectors, strict=True)])
    np.testing.assert_allclose(scores, expected.reshape(-1), atol=1e-5)
    scored_documents = {documents[row] for row in np.unique(nearest)}
    assert all(
        server.paid[text] == (text in texts or text in scored_documents) for text in {*texts, *documents} - {*PROBES}
    )
