"""The teacher's vectors: nearest documents, vectors that say nothing, and those of tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_versions import LIBRARIES, install_another
from sentence_transformers import SentenceTransformer
from teach_fakes import write_tower

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import table_from_rows, write_table
from steps.embed.token_vectors import token_vectors
from steps.embed.vectors import check_spread, nearest_documents, searched_rows, shares
from steps.encoders.towers import load_tower
from steps.retrieval import exact_search

RNG = np.random.default_rng(3)
TEXTS = RNG.normal(size=(30, 8))
DOCUMENTS = RNG.normal(size=(60, 8)) * RNG.uniform(0.2, 5.0, size=(60, 1))  # the longest win inner products
DIFFERENT = [f"text number {row}" for row in range(200)]
RANDOM = np.random.default_rng(0)
Vectors = Callable[[int], np.ndarray]
BATCH, SHARD = 4, 9  # of 33 tokens: shards of two batches, and a last one of one token


def best_by_hand(text: np.ndarray, documents: np.ndarray, count: int, *, cosine: bool) -> list[int]:
    scores = []
    for document in documents:
        score = sum(float(a) * float(b) for a, b in zip(text, document, strict=True))
        scores.append(score / float(np.sqrt(sum(float(b) ** 2 for b in document))) if cosine else score)
    return sorted(range(len(documents)), key=lambda row: -scores[row])[:count]


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("block", [100, 16], ids=["whole", "in blocks"])
def test_nearest_documents_are_those_of_a_full_search(
    cosine: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_search, "_DOCUMENTS", block)
    for rows in (np.arange(60), np.arange(0, 60, 2)):
        nearest = nearest_documents(TEXTS, DOCUMENTS, 5, rows if len(rows) < 60 else None, cosine=cosine)
        assert nearest.dtype == np.int32
        expected = [rows[best_by_hand(text, DOCUMENTS[rows], 5, cosine=cosine)].tolist() for text in TEXTS]
        assert nearest.tolist() == expected


def write_corpus(folder: Path, **sizes: int) -> Path:
    rows = [
        {"doc_id": f"{name}/{number}", "dataset": name, "title": "", "topic": "", "content": "text"}
        for name, size in sizes.items()
        for number in range(size)
    ]
    write_table(folder, "corpus", table_from_rows("corpus", rows))
    return folder


def test_of_too_large_a_corpus_a_seeded_sample_with_small_data_sets_whole_is_searched_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = write_corpus(tmp_path, large=40, small=5, other=15)
    for limit in (0, 60, 61):
        assert searched_rows(ingest, limit, 1) is None
    assert not capsys.readouterr().err
    rows = searched_rows(ingest, 31, 1)
    assert rows is not None and rows.tolist() == sorted(set(rows.tolist()))
    assert [int(((rows >= low) & (rows < high)).sum()) for low, high in ((0, 40), (40, 45), (45, 60))] == [13, 5, 13]
    assert "among 31 of 60" in capsys.readouterr().err
    assert np.array_equal(rows, searched_rows(ingest, 31, 1)) and not np.array_equal(rows, searched_rows(ingest, 31, 2))
    assert set(np.unique(nearest_documents(TEXTS, DOCUMENTS, 31, rows, cosine=True))) == set(rows)


@pytest.mark.parametrize(("sizes", "size", "split"), [([9, 9], 7, [3, 4]), ([1, 50, 2], 10, [1, 7, 2]), ([4], 3, [3])])
def test_every_data_set_has_its_share_and_what_small_ones_leave(sizes: list[int], size: int, split: list[int]) -> None:
    assert shares(sizes, size) == split


def test_of_more_neighbours_than_documents_all_are_taken_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    every = nearest_documents(TEXTS, DOCUMENTS, 60, cosine=True)
    assert every.shape == (30, 60) and "takes them all" not in capsys.readouterr().err
    assert np.array_equal(every, nearest_documents(TEXTS, DOCUMENTS, 61, cosine=True))
    assert "neighbours is 61, but there are 60 documents: takes them all" in capsys.readouterr().err


def around(noise: float) -> Vectors:
    """Vectors about one direction."""
    return lambda count: np.ones((count, 16)) + noise * RANDOM.normal(size=(count, 16))


def by_length(count: int) -> np.ndarray:
    """Of texts of unknown words: a vector for each length."""
    return RANDOM.normal(size=(8, 16))[np.arange(count) % 8]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("vectors", [around(0), around(1e-3), by_length, lambda count: np.zeros((count, 16))])
def test_vectors_that_say_nothing_are_refused(vectors: Vectors, dtype: type) -> None:
    with pytest.raises(UserError, match="say nothing"):
        check_spread(vectors(200).astype(dtype), DIFFERENT, "documents", "dense")


def test_narrow_and_wide_models_few_texts_and_equal_texts_pass() -> None:
    for noise in (0.03, 10):
        for dtype in (np.float16, np.float32):
            check_spread(around(noise)(200).astype(dtype), DIFFERENT, "documents", "dense")
    check_spread(np.ones((9, 16)), DIFFERENT[:9], "documents", "dense")
    check_spread(np.ones((200, 16)), ["The same text", "the same text!"] * 100, "documents", "dense")
    check_spread(np.concatenate([around(1)(50)] * 4), DIFFERENT[:50] * 4, "documents", "dense")


class Killed(Exception):
    """Raised where the process would end."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tower(tmp_path / "model")


def embed(folder: Path, dies_at: int = 0, batch_size: int = BATCH, precision: Any = "fp32") -> tuple[np.ndarray, int]:
    """The vectors, and how many batches were read for them."""
    tower, batches = load_tower(folder), []

    def counted(*_: object) -> None:
        batches.append(1)
        if len(batches) == dies_at:
            raise Killed

    tower.register_forward_pre_hook(counted)
    vectors = token_vectors(
        tower, fingerprint(folder).id, precision=precision, batch_size=batch_size, shard_texts=SHARD
    )
    return vectors, len(batches)


def in_one_pass(folder: Path) -> np.ndarray:
    tower: SentenceTransformer = load_tower(folder)
    first, last = tower.tokenizer.cls_token_id, tower.tokenizer.sep_token_id
    rows = []
    for ids in torch.arange(len(tower.tokenizer)).split(BATCH):
        batch = torch.stack([torch.full_like(ids, first), ids, torch.full_like(ids, last)], dim=1)
        with torch.inference_mode():
            features = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
            rows.append(tower(features)["sentence_embedding"].numpy())
    return np.concatenate(rows)


def shards(cache: Path) -> list[Path]:
    return sorted(cache.glob("tokens/*/shard-*"))


@pytest.mark.medium
def test_they_are_those_of_one_pass_and_are_made_once(folder: Path, own_cache: Path) -> None:
    expected = in_one_pass(folder)
    first, count = embed(folder)
    assert first.dtype == np.float32 and first.tobytes() == expected.tobytes()
    assert count == -(-len(expected) // BATCH) and len(shards(own_cache)) == -(-len(expected) // (2 * BATCH))
    again, count = embed(folder)
    assert count == 0 and again.tobytes() == expected.tobytes()


@pytest.mark.medium
def test_a_killed_run_repeats_one_shard_and_leaves_the_same_bytes(folder: Path, own_cache: Path) -> None:
    expected = in_one_pass(folder)
    with pytest.raises(Killed):
        embed(folder, dies_at=6)  # in the second half of the third shard
    assert len(shards(own_cache)) == 2
    resumed, count = embed(folder)
    assert count == -(-len(expected) // BATCH) - 4 and resumed.tobytes() == expected.tobytes()


@pytest.mark.medium
def test_another_teacher_precision_batch_or_library_has_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(folder)
    retrained = load_tower(folder)
    retrained.prompts["query"] = "sum "
    retrained.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert embed(tmp_path / "other")[1] and embed(folder, precision="bf16")[1] and embed(folder, batch_size=8)[1]
    assert not embed(folder)[1]
    for library in LIBRARIES:
        with monkeypatch.context() as patch:
            install_another(library, patch)
            assert embed(folder)[1]
