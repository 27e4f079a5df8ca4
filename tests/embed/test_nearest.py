"""The nearest documents are those of a full search."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from steps.embed import nearest
from steps.embed.nearest import nearest_documents
from steps.embed.params import EmbedParams

RNG = np.random.default_rng(3)
TEXTS = RNG.normal(size=(30, 8))
DOCUMENTS = RNG.normal(size=(60, 8)) * RNG.uniform(0.2, 5.0, size=(60, 1))  # the longest win inner products


def best_by_hand(text: np.ndarray, documents: np.ndarray, count: int, *, cosine: bool) -> list[int]:
    scores = []
    for document in documents:
        score = sum(float(a) * float(b) for a, b in zip(text, document, strict=True))
        scores.append(score / float(np.sqrt(sum(float(b) ** 2 for b in document))) if cosine else score)
    return sorted(range(len(documents)), key=lambda row: -scores[row])[:count]


@pytest.mark.parametrize("cosine", [True, False])
def test_nearest_documents_are_those_of_a_full_search(cosine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "_TEXTS", 7)  # the last part is smaller
    found = nearest_documents(TEXTS, DOCUMENTS, 5, 1, cosine=cosine)
    assert found.dtype == np.int32
    assert found.tolist() == [best_by_hand(text, DOCUMENTS, 5, cosine=cosine) for text in TEXTS]


def test_the_length_of_documents_counts_in_inner_products_alone() -> None:
    cosine, dot = (nearest_documents(TEXTS, DOCUMENTS, 5, 1, cosine=flag) for flag in (True, False))
    assert not np.array_equal(cosine, dot)


def test_memory_mapped_half_precision_is_read(tmp_path: Path) -> None:
    for name, vectors in (("texts", TEXTS), ("documents", DOCUMENTS)):
        np.save(tmp_path / f"{name}.npy", vectors.astype(np.float16))
    texts, documents = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("texts", "documents"))
    found = nearest_documents(texts, documents, 3, 1, cosine=True)
    assert found.tolist() == [best_by_hand(text, np.asarray(documents), 3, cosine=True) for text in texts]


def test_of_a_large_corpus_a_seeded_sample_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "_DOCUMENTS", 20)
    whole = nearest_documents(TEXTS, DOCUMENTS, 20, 1, cosine=True)
    sample = np.unique(whole)
    assert len(sample) == 20
    expected = [sample[best_by_hand(text, DOCUMENTS[sample], 20, cosine=True)].tolist() for text in TEXTS]
    assert whole.tolist() == expected
    assert np.array_equal(whole, nearest_documents(TEXTS, DOCUMENTS, 20, 1, cosine=True))
    assert not np.array_equal(sample, np.unique(nearest_documents(TEXTS, DOCUMENTS, 20, 2, cosine=True)))
    assert np.array_equal(whole, nearest_documents(TEXTS, DOCUMENTS, 21, 1, cosine=True))


def test_of_more_neighbours_than_documents_all_are_taken_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    every = nearest_documents(TEXTS, DOCUMENTS, 60, 1, cosine=True)
    assert every.shape == (30, 60) and "takes them all" not in capsys.readouterr().err
    assert np.array_equal(every, nearest_documents(TEXTS, DOCUMENTS, 61, 1, cosine=True))
    assert "neighbours is 61, but there are 60 documents: takes them all" in capsys.readouterr().err


def test_without_documents_there_are_no_nearest() -> None:
    assert nearest_documents(TEXTS, DOCUMENTS[:0], 5, 1, cosine=True).shape == (30, 0)


def test_a_seed_below_zero_draws_nothing_and_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        EmbedParams(parts=["titles"], max_part_texts=0, least_texts=0, neighbours=1, seed=-1)
