"""A model behind an API scores over the index of an old one: its own inner products, each text paid for once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embedding_server import KEY, EmbeddingServer, serving, tower_reader
from endpoint_fakes import teach
from stages import run_score
from towers import other_weights

from bench.migrate import reading, tokens_of
from slimtower.common.errors import UserError
from steps.core.corpus import CorpusTexts
from steps.core.tables import read_table
from steps.encoders.towers import load_tower
from steps.endpoint.module import PROBES

pytestmark = pytest.mark.medium


@pytest.fixture
def server(tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    """The new model behind an API: other weights than those that made the index."""
    monkeypatch.setenv("PLANTED_KEY", KEY)
    other_weights(tiny_tower, tmp_path / "new", 5)
    with serving(tower_reader(load_tower(tmp_path / "new"))) as state:
        yield state


def test_its_scores_are_the_models_there_and_each_text_is_paid_for_once(
    server: EmbeddingServer, linked: Path, tmp_path: Path
) -> None:
    teach(linked / "models/teach/rented", server)
    output = run_score(linked, "rented")
    found = read_table(output, "scores")["score"].to_numpy()
    texts = read_table(linked / "data/embed", "alignment_texts")["text"].to_pylist()
    documents = list(CorpusTexts(linked / "data/ingest"))
    model = load_tower(tmp_path / "new")
    asked, held = (model.encode(some, normalize_embeddings=True).astype(np.float64) for some in (texts, documents))
    nearest = np.load(linked / "data/embed/nearest.npy")
    expected = np.stack([held[rows] @ vector for rows, vector in zip(nearest, asked, strict=True)])
    np.testing.assert_allclose(found, expected.reshape(-1), atol=1e-5)
    read = {documents[row] for row in np.unique(nearest)}
    assert all(server.paid[text] == (text in texts or text in read) for text in {*texts, *documents} - {*PROBES})
    requests = len(server.bodies)
    run_score(linked, "rented")
    assert len(server.bodies) == requests


def test_scoring_stops_before_it_passes_the_budget(server: EmbeddingServer, linked: Path) -> None:
    teach(linked / "models/teach/rented", server, {"max_tokens_total": 150})
    with pytest.raises(UserError, match=r"to ask tiny for.*max_tokens_total is 150"):
        run_score(linked, "rented")
    assert set(server.paid) == set(PROBES) and not (linked / "data/score/rented").exists()


def test_embedding_all_anew_is_priced_by_the_apis_tokens(server: EmbeddingServer, linked: Path) -> None:
    tower = load_tower(teach(linked / "models/teach/rented", server), "document")
    texts = list(CorpusTexts(linked / "data/ingest"))
    vectors, cost = reading(tower, texts)
    tokenizer = tower[0].tokenizer
    assert cost["tokens"] == tokens_of(tower, texts) == sum(len(tokenizer(text)["input_ids"]) for text in texts)
    assert cost["money"] == pytest.approx(cost["tokens"] * 0.02 / 1e6) and cost["seconds"] > 0
    again, free = reading(tower, texts)
    np.testing.assert_array_equal(again, vectors)
    assert free["seconds"] == 0 and free["money"] == cost["money"]
