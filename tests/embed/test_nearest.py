"""The nearest documents are those of a full search."""

from pathlib import Path

import numpy as np
import pytest

from steps.core.tables import table_from_rows, write_table
from steps.embed.nearest import nearest_documents, searched_rows, shares
from steps.retrieval import exact_search

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
    monkeypatch.setattr(exact_search, "_QUERIES", 7)  # the last part is smaller
    found = nearest_documents(TEXTS, DOCUMENTS, 5, cosine=cosine)
    assert found.dtype == np.int32
    assert found.tolist() == [best_by_hand(text, DOCUMENTS, 5, cosine=cosine) for text in TEXTS]


def test_many_documents_are_searched_in_blocks_whose_best_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "_AT_ONCE", 20)
    monkeypatch.setattr(exact_search, "_DOCUMENTS", 16)
    for rows in (None, np.arange(0, 60, 2)):
        for cosine in (True, False):
            found = nearest_documents(TEXTS, DOCUMENTS, 5, rows, cosine=cosine)
            own = np.arange(60) if rows is None else rows
            expected = [own[best_by_hand(text, DOCUMENTS[own], 5, cosine=cosine)].tolist() for text in TEXTS]
            assert found.tolist() == expected


def test_a_document_anywhere_in_a_corpus_of_more_than_50_000_is_found() -> None:
    vectors = np.zeros((60_000, 4), dtype=np.float32)
    angles = np.linspace(0, np.pi, len(vectors))
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    own = np.arange(0, 60_000, 997)
    assert nearest_documents(vectors[own], vectors, 1, cosine=False)[:, 0] == pytest.approx(own, abs=40)


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
    for most in (0, 60, 61):
        assert searched_rows(ingest, most, 1) is None
    assert not capsys.readouterr().err
    rows = searched_rows(ingest, 31, 1)
    assert rows is not None and rows.tolist() == sorted(set(rows.tolist()))
    assert [int(((rows >= start) & (rows < end)).sum()) for start, end in ((0, 40), (40, 45), (45, 60))] == [13, 5, 13]
    assert "among 31 of 60" in capsys.readouterr().err
    assert np.array_equal(rows, searched_rows(ingest, 31, 1)) and not np.array_equal(rows, searched_rows(ingest, 31, 2))
    assert set(np.unique(nearest_documents(TEXTS, DOCUMENTS, 31, rows, cosine=True))) == set(rows)


@pytest.mark.parametrize(("sizes", "most", "taken"), [([9, 9], 7, [3, 4]), ([1, 50, 2], 10, [1, 7, 2]), ([4], 3, [3])])
def test_every_data_set_has_its_share_and_what_small_ones_leave(sizes: list[int], most: int, taken: list[int]) -> None:
    assert shares(sizes, most) == taken


def test_of_more_neighbours_than_documents_all_are_taken_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    every = nearest_documents(TEXTS, DOCUMENTS, 60, cosine=True)
    assert every.shape == (30, 60) and "takes them all" not in capsys.readouterr().err
    assert np.array_equal(every, nearest_documents(TEXTS, DOCUMENTS, 61, cosine=True))
    assert "neighbours is 61, but there are 60 documents: takes them all" in capsys.readouterr().err
