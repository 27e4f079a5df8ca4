"""What is dropped from generated texts, and the measures of similarity."""

import numpy as np
import pytest
from teach_fakes import write_tower

from steps.core.texts import fold
from steps.encoders.towers import load_tower
from steps.generate.filtering import content_overlap, filter_texts, source_cosines


def test_each_reason_is_found_and_counted() -> None:
    texts = ["", " ?! ", "Sum the ROWS.", "merge rows of a disk!", "sort files", "plot rows", "Plot rows", "draw a map"]
    sources = ["a", "b", "sum the rows", "merge rows", "sort lists", "plot columns", "plot images", "draw maps"]
    filtered = filter_texts(
        texts, sources, evaluation={"merge rows of a disk"}, existing={"sort files", "sum the rows"}
    )
    assert filtered.selected == [5, 7]
    assert filtered.dropped == {
        0: "empty", 1: "empty", 2: "copy", 3: "evaluation_query", 4: "duplicate", 6: "duplicate"
    }  # fmt: skip
    assert filtered.count(range(4)) == {"empty": 2, "evaluation_query": 1, "copy": 1, "duplicate": 0}


def test_a_planted_evaluation_query_never_passes_whatever_its_spelling() -> None:
    leak = "Which drugs treat Type-2 diabetes?"
    spellings = [leak, leak.upper(), "which drugs treat type 2 diabetes", "Which  drugs treat Type‑2 diabetes ?"]
    filtered = filter_texts(spellings, ["source"] * 4, evaluation={fold(leak)}, existing=set())
    assert filtered.selected == []
    assert filtered.count(range(4))["evaluation_query"] == 4


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("sum the rows", "sum of all rows", 2 / 3),
        ("Sum rows", "the ROWS, sum!", 1.0),
        ("sort", "merge", 0.0),
        ("the of", "and", 1.0),
        ("sort rows by name", "sort", 1 / 3),
    ],
)
def test_overlap_is_jaccard_over_content_words(first: str, second: str, expected: float) -> None:
    assert content_overlap(first, second) == pytest.approx(expected)
    assert content_overlap(second, first) == pytest.approx(expected)


def test_cosines_pair_each_variant_with_its_source_and_with_another(tmp_path) -> None:
    judge = load_tower(write_tower(tmp_path / "model"))
    texts = ["sum rows", "merge all tables at once", "how to draw images"]
    own, other = source_cosines(judge, texts, texts)
    np.testing.assert_allclose(own, 1.0, atol=1e-5)
    embedded = judge.encode(texts, convert_to_numpy=True).astype(np.float64)
    embedded /= np.linalg.norm(embedded, axis=1, keepdims=True)
    np.testing.assert_allclose(other, [embedded[row] @ embedded[row - 1] for row in range(3)], atol=1e-5)
