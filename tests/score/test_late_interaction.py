"""A late interaction model scores: MaxSim by hand, token vectors on disk, and a run that was killed."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from late_fakes import write_late_teacher
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from stages import SCORE, corpus_texts, reading, run_score

import steps.retrieval.late_interaction as late
from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import file_lock
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.retrieval.late_interaction import TokenVectors, max_similarities
from steps.scorers import open_scorer
from steps.scorers.base import distinct_once
from steps.scorers.late_interaction import LateInteractionScorer


def test_blocks_of_documents_give_what_one_pair_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    query = random.normal(size=(5, 8))
    documents = [random.normal(size=(size, 8)) for size in (1, 7, 3, 30, 2)]
    expected = [float((query @ document.T).max(axis=1).sum()) for document in documents]
    for elements in (1, 300, 10**6):
        monkeypatch.setattr(late, "_ELEMENTS", elements)
        np.testing.assert_allclose(max_similarities(query, documents), expected, rtol=1e-5)
    assert max_similarities(query, [*documents, np.zeros((0, 8))])[-1] < -1e8, "below every real document"
    assert max_similarities(query, []).shape == (0,)


@pytest.mark.medium
def test_the_stage_scores_by_max_similarity_of_float16_vectors(
    tmp_path: Path, tiny_tower: Path, linked: Path, own_cache: Path
) -> None:
    teach = write_late_teacher(tmp_path / "models/teach/late", tiny_tower)
    table = read_table(run_score(tmp_path, "late"), "scores")
    texts, corpus = read_table(linked / "data/embed", "alignment_texts")["text"].to_pylist(), corpus_texts(linked)
    plain = MultiVectorEncoder(str(teach / "tower"), device="cpu")
    for row in np.linspace(0, table.num_rows - 1, 20).astype(int).tolist():
        text_row, doc_row, score = (table[name][row].as_py() for name in ("text_row", "doc_row", "score"))
        query_vectors, document_vectors = (
            embed([text])[0].numpy().astype(np.float64)
            for embed, text in ((plain.encode_query, texts[text_row]), (plain.encode_document, corpus[doc_row]))
        )
        assert score == pytest.approx(
            (query_vectors @ document_vectors.astype(np.float16).T).max(axis=1).sum(), abs=2e-3
        )
    assert not list(own_cache.glob("token_vectors/*")), "removed once all is scored"


@pytest.mark.medium
def test_a_killed_reading_repeats_one_shard_and_leaves_the_same_vectors(
    tmp_path: Path, tiny_tower: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach = write_late_teacher(tmp_path / "late", tiny_tower)
    documents = [f"document {number} " + "of words " * (number % 5) for number in range(10)] + [""]
    params = SCORE.model_copy(update={"shard_texts": 4})

    def scorer() -> LateInteractionScorer:
        opened = open_scorer(teach, fingerprint(teach / "tower").id, documents, tmp_path / "unused", reading(params))
        assert isinstance(opened, LateInteractionScorer)
        return opened

    undisturbed = scorer()
    expected = undisturbed.scores(TEXTS, PLACES)
    ends, tokens = undisturbed.documents.ends, undisturbed.documents.file.read_bytes()
    undisturbed.finish()

    batch_sizes: list[int] = []
    vectors = late.token_vectors

    def killed(model: MultiVectorEncoder, batch: list[str], *words: object, **named: object) -> list[np.ndarray]:
        if len(batch_sizes) == 2:
            with undisturbed.documents.file.open("ab") as handle:
                handle.write(b"half a shard")
            raise KeyboardInterrupt
        batch_sizes.append(len(batch))
        return vectors(model, batch, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "token_vectors", killed)
    with pytest.raises(KeyboardInterrupt):
        scorer().scores(TEXTS, PLACES)
    batch_sizes.clear()
    again = scorer()
    np.testing.assert_array_equal(again.scores(TEXTS, PLACES), expected)
    assert batch_sizes == [3]
    np.testing.assert_array_equal(again.documents.ends, ends)
    assert again.documents.file.read_bytes() == tokens
    assert TokenVectors(again.folder, 8)[10].shape == (2, 8), "an empty document has its special tokens"


TEXTS, PLACES = ["how many words", "which document"], np.array([[0, 10], [9, 4]])
DOCUMENTS = [f"document {number} " + "of words " * (number % 5) for number in range(11)]


@pytest.mark.medium
@pytest.mark.faults("two runs at once")
def test_a_run_has_its_vectors_alone_and_a_kill_while_they_are_removed_leaves_none_that_count(
    tmp_path: Path, tiny_tower: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach = write_late_teacher(tmp_path / "late", tiny_tower)

    def scorer() -> Any:
        return open_scorer(teach, "a fingerprint", DOCUMENTS, tmp_path / "unused", reading(SCORE))

    def killed(path: Path, **_: object) -> None:
        if (path / "tokens.f16").is_file():
            (path / "tokens.f16").unlink()
            raise KeyboardInterrupt

    def is_free() -> bool:
        with suppress(TransientError), file_lock(own_cache / "locks" / undisturbed.folder.name, "held"):
            return True
        return False

    undisturbed = scorer()
    expected = undisturbed.scores(TEXTS, PLACES)
    assert not is_free()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        undisturbed.finish()
    again = scorer()
    np.testing.assert_array_equal(again.scores(TEXTS, PLACES), expected)
    again.finish()
    assert is_free() and not list(own_cache.glob("token_vectors/*"))


def stored_vectors(folder: Path) -> TokenVectors:
    """Vectors of two documents, of one and of two tokens."""
    vectors = TokenVectors(folder, 2)
    vectors.append([np.full((tokens, 2), tokens, dtype=np.float32) for tokens in (1, 2)])
    return vectors


@pytest.mark.parametrize("value", [np.nan, 7e4])  # the second is none in 16 bits
def test_token_vectors_that_are_no_numbers_are_not_kept(tmp_path: Path, value: float) -> None:
    vectors = TokenVectors(tmp_path, 2)
    with pytest.raises(UserError, match="not finite"):
        vectors.append([np.ones((1, 2), np.float32), np.full((1, 2), value, np.float32)])
    assert len(TokenVectors(tmp_path, 2)) == 0 and len(stored_vectors(tmp_path)) == 2


@pytest.mark.parametrize("name", ["tokens.f16", "lengths.i64"])
@pytest.mark.parametrize(("size", "whole"), [(None, 0), (0, 0), (11, 1)])
def test_vectors_that_are_not_whole_do_not_count(tmp_path: Path, name: str, size: int | None, whole: int) -> None:
    stored_vectors(tmp_path)
    assert len(TokenVectors(tmp_path, 2)) == 2
    if size is None:
        (tmp_path / name).unlink()
    else:
        os.truncate(tmp_path / name, size)
    assert len(TokenVectors(tmp_path, 2)) == whole
    again = stored_vectors(tmp_path)
    assert [len(vectors) for vectors in again] == [1] * whole + [1, 2]
    assert again[whole + 1].tolist() == [[2, 2], [2, 2]]


def test_no_file_is_written_anew_for_each_piece(tmp_path: Path) -> None:
    vectors = stored_vectors(tmp_path)
    inode = vectors.lengths_file.stat().st_ino
    vectors.append([np.ones((3, 2), np.float32)])
    assert vectors.lengths_file.stat().st_ino == inode and len(TokenVectors(tmp_path, 2)[2]) == 3


@pytest.mark.medium
def test_a_model_that_pools_tokens_scores_and_has_no_layers(tmp_path: Path, tiny_tower: Path) -> None:
    teach = write_late_teacher(tmp_path / "late", tiny_tower)
    model = late.load_late_interaction(teach / "tower")
    model.append(HierarchicalTokenPooling(pool_factor=2))
    model.save_pretrained(str(teach / "pooled"), create_model_card=False)
    (teach / "tower").rename(teach / "plain")
    (teach / "pooled").rename(teach / "tower")
    scorer = open_scorer(teach, "a fingerprint", DOCUMENTS, tmp_path / "unused", reading(SCORE))
    scorer.check(pairs=False, layers=False)
    assert np.isfinite(scorer.scores(TEXTS, PLACES)).all()
    with pytest.raises(UserError, match=r"HierarchicalTokenPooling .* score\.layers: false"):
        scorer.check(pairs=False, layers=True)
    scorer.finish()


def test_a_text_that_stands_there_twice_is_read_once() -> None:
    read: list[str] = []

    def embed(texts: list[str]) -> list[np.ndarray]:
        read.extend(texts)
        return [np.full(2, len(text)) for text in texts]

    vectors = distinct_once(embed, ["a", "bbb", "a", "a"])
    assert [int(vector[0]) for vector in vectors] == [1, 3, 1, 1] and read == ["a", "bbb"]


def test_nothing_is_written_behind_vectors_that_another_run_removed(tmp_path: Path) -> None:
    vectors = stored_vectors(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(TransientError, match=r"tokens\.f16: vectors that were here are gone"):
        vectors.append([np.ones((1, 2), dtype=np.float32)])
    assert len(TokenVectors(tmp_path / "cache", 2)) == 0
