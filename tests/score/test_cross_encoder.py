"""A cross encoder scores: its own logits of each pair, whatever the order and the batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rank_fakes import write_cross_teacher
from stages import SCORE, corpus_texts, run_score

from slimtower.common.files import read_json
from steps.core.tables import read_table
from steps.retrieval.rankers import Pooling, dual_pooled, load_ranker, pair_scores

pytestmark = pytest.mark.medium

TEXTS = ["how to add records", "to order all fields", "show pictures"]
DOCUMENTS = ["sum rows. to sum all rows at once", "", "sort columns — naïve ✓", " ".join(["plot images"] * 40)]


@pytest.fixture
def teach(tmp_path: Path) -> Path:
    """A ranker as the stage `rank` leaves it."""
    return write_cross_teacher(tmp_path / "models/teach/cross", tmp_path / "model")


def test_bf16_does_not_round_the_score_itself(teach: Path) -> None:
    ranker = load_ranker(teach / "tower")
    pairs = [(text, document) for text in TEXTS for document in DOCUMENTS]
    exact, in_bf16 = (
        pair_scores(ranker, pairs, precision=precision, batch_size=4)  # type: ignore[arg-type]
        for precision in ("fp32", "bf16")
    )
    np.testing.assert_allclose(in_bf16, exact, rtol=0.1, atol=0.2)
    assert not np.array_equal(in_bf16, exact)
    rounded = torch.from_numpy(in_bf16).bfloat16().float().numpy()
    assert not np.array_equal(in_bf16, rounded)


@pytest.mark.parametrize("pooling", ["cls", "special_tokens", "segments"])
def test_the_stage_keeps_embeddings_of_pairs_where_they_are_asked_for(
    teach: Path, tmp_path: Path, linked: Path, own_cache: Path, pooling: Pooling
) -> None:
    if pooling != "cls":
        pooled_ranker = dual_pooled(str(tmp_path / "model/encoder"), pooling, 0.1, 24)
        pooled_ranker.save_pretrained(str(teach / "tower"), create_model_card=False)
    output = run_score(tmp_path, "cross", SCORE.model_copy(update={"pairs": 2}))
    embeddings, nearest = np.load(output / "pairs.npy"), np.load(linked / "data/embed/nearest.npy")
    assert embeddings.shape == (len(nearest), 2, 16) and embeddings.dtype == np.float32
    kind = "joint" if pooling == "cls" else "pooled"
    assert read_json(output / "report.json")["pairs"] == {"documents": 2, "dim": 16, "embeds": kind}
    texts = read_table(linked / "data/embed", "alignment_texts")["text"].to_pylist()
    corpus = corpus_texts(linked)
    ranker = load_ranker(teach / "tower")
    scores = read_table(output, "scores")["score"].to_numpy().reshape(nearest.shape)
    head = ranker.model.classifier if pooling == "cls" else None  # type: ignore[union-attr]
    for row in (0, 30, len(nearest) - 1):
        features = ranker(ranker.preprocess([(texts[row], corpus[nearest[row, 1]])]))
        assert scores[row, 1] == pytest.approx(features["scores"].item(), abs=1e-4)
        if head is None:
            np.testing.assert_allclose(embeddings[row, 1], features["query_embedding"][0].detach().numpy(), atol=1e-5)
        else:
            pair_embedding = torch.from_numpy(embeddings[row, 1])
            assert head(pair_embedding).item() == pytest.approx(features["scores"].item(), abs=1e-4)  # type: ignore[operator]
    cached = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.npy")}
    again = run_score(tmp_path, "cross", SCORE.model_copy(update={"pairs": 2}))
    assert np.array_equal(np.load(again / "pairs.npy"), embeddings)
    assert cached == {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.npy")}  # read, not made again
