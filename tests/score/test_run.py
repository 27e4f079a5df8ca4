"""A second dual encoder scores: its own inner products, and a killed run goes on where it was."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from killed_program import run_until
from other_versions import install_another
from stages import SCORE, corpus_texts, run_score
from towers import write_other_teacher

import steps.score.run as stage
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.encoders.towers import load_tower
from steps.scorers.dual_encoder import DualEncoderScorer

pytestmark = pytest.mark.medium

SCRIPT = """
import sys, time
from pathlib import Path
from stages import run_score
from steps.scorers.dual_encoder import DualEncoderScorer

scores = DualEncoderScorer.scores

def slow(self, texts, documents):
    time.sleep(0.5)
    return scores(self, texts, documents)

DualEncoderScorer.scores = slow
run_score(Path(sys.argv[1]), "other")
"""


@pytest.fixture(scope="module")
def root(embedded: Path, tiny_tower: Path) -> Path:
    """A run with two teachers in which `embed` is done; to be written to below data/score alone."""
    write_other_teacher(tiny_tower, embedded / "models/teach/other", seed=2)
    return embedded


def shards(cache: Path) -> list[Path]:
    return sorted(cache.glob("scores/*/*.npy"))


def test_a_score_is_the_inner_product_of_the_other_teachers_own_embeddings(root: Path) -> None:
    output = run_score(root, "other")
    texts = read_table(root / "data/embed", "alignment_texts")["text"].to_pylist()
    documents = corpus_texts(root)
    nearest = np.load(root / "data/embed/nearest.npy")
    tower = load_tower(root / "models/teach/other/tower")
    query_vectors, document_vectors = (
        np.stack([embed(text) for text in side]).astype(np.float64)
        for embed, side in ((tower.encode_query, texts), (tower.encode_document, documents))
    )
    expected = np.stack([document_vectors[rows] @ vector for rows, vector in zip(nearest, query_vectors, strict=True)])
    table = read_table(output, "scores")
    assert table.schema.types == [pa.int32(), pa.int32(), pa.float32()]
    assert table["text_row"].to_pylist() == np.repeat(np.arange(len(texts)), nearest.shape[1]).tolist()
    assert table["doc_row"].to_pylist() == nearest.reshape(-1).tolist()
    np.testing.assert_allclose(table["score"].to_numpy(), expected.reshape(-1), rtol=1e-5)
    first = np.load(root / "data/embed/documents.npy")
    assert not np.allclose(
        document_vectors @ query_vectors[0], first @ np.load(root / "data/embed/alignment.npy")[0], atol=0.1
    )

    report = read_json(output / "report.json")
    assert report["teacher"]["weights"] == fingerprint(root / "models/teach/other/tower").weights
    assert (report["texts"], report["documents"]) == (len(texts), len(np.unique(nearest)))
    assert report["scores"] == nearest.size
    assert (report["score"]["min"], report["score"]["max"]) == pytest.approx((expected.min(), expected.max()))
    assert sorted(path.name for path in output.iterdir()) == ["report.json", "scores.parquet"]


@pytest.mark.slow
def test_a_killed_run_repeats_at_most_one_shard_and_ends_as_an_undisturbed_one(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(lambda: len(shards(own_cache)) >= 2, SCRIPT, root)
    cached, embedded = len(shards(own_cache)), len(list(own_cache.glob("vectors/*/shard-*")))

    scored: list[int] = []
    scores = DualEncoderScorer.scores

    def counted(self: DualEncoderScorer, texts: list[str], documents: np.ndarray) -> np.ndarray:
        scored.append(len(texts))
        return scores(self, texts, documents)

    monkeypatch.setattr(DualEncoderScorer, "scores", counted)
    resumed = {path.name: path.read_bytes() for path in run_score(root, "other").iterdir()}
    total = -(-read_table(root / "data/embed", "alignment_texts").num_rows // SCORE.shard_texts)
    assert len(scored) == total - cached > 0
    assert len(list(own_cache.glob("vectors/*/shard-*"))) == embedded  # documents are embedded once

    monkeypatch.setenv("SLIMTOWER_CACHE", str(own_cache.with_name("another-cache")))
    again = {path.name: path.read_bytes() for path in run_score(root, "other").iterdir()}
    assert again == resumed
    assert not list((root / "data/score").glob(".staging*"))


def test_another_precision_library_teacher_or_text_is_scored_anew_and_the_same_is_not(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(**changes: Any) -> int:
        before = len(shards(own_cache))
        run_score(root, "other", SCORE.model_copy(update=changes))
        return len(shards(own_cache)) - before

    total = computed()
    assert total > 1
    assert computed() == computed(batch_size=5) == 0
    assert computed(precision="bf16") == total
    with monkeypatch.context() as patch:
        install_another("transformers", patch)
        assert computed() == total
    texts = stage.read_table(root / "data/embed", "alignment_texts")
    column = texts.schema.get_field_index("text")
    words = texts["text"].to_pylist()
    changed = texts.set_column(column, texts.schema.field(column), pa.array(["something else", *words[1:]]))
    monkeypatch.setattr(stage, "read_table", lambda *_: changed)
    assert computed() == 1


def test_what_cannot_be_scored_is_said(root: Path, linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = linked / "models/teach/other"
    shutil.copytree(root / "models/teach/other", folder)
    nearest = np.load(root / "data/embed/nearest.npy")
    for wrong in (nearest[1:], nearest + 64):
        monkeypatch.setattr(stage.np, "load", lambda *_, wrong=wrong, **__: wrong)
        with pytest.raises(UserError, match=r"nearest\.npy: is of other texts or documents"):
            run_score(linked, "other")
    monkeypatch.undo()
    monkeypatch.setenv("SLIMTOWER_CACHE", str(linked / "cache"))
    monkeypatch.setattr(DualEncoderScorer, "scores", lambda self, texts, positions: np.full(positions.shape, np.nan))
    with pytest.raises(UserError, match=r"document is nan; set score\.precision: fp32"):
        run_score(linked, "other")
    write_json(folder / "report.json", {"kind": "rules"})
    with pytest.raises(UserError, match="'rules' does not score"):
        run_score(linked, "other")
