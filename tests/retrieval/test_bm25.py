"""BM25 against its formula, and its manners."""

from math import log

import numpy as np
import pytest

from steps.retrieval.bm25 import Bm25

TEXTS = ["cumulative sum axis", "sum sum total elements array", "open socket connection", "axis rotation matrix plot"]


def test_scores_follow_lucenes_formula() -> None:
    scores, ids = Bm25(list("abcd"), TEXTS).search(["sum axis"], k=10)
    lengths = [len(text.split()) for text in TEXTS]
    mean = sum(lengths) / len(lengths)

    def term(count: int, holding: int, length: int) -> float:
        idf = log(1 + (4 - holding + 0.5) / (holding + 0.5))
        return idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * length / mean))

    expected = {
        "a": term(1, 2, lengths[0]) + term(1, 2, lengths[0]),
        "b": term(2, 2, lengths[1]),
        "d": term(1, 2, lengths[3]),
    }
    assert dict(zip(ids[0], scores[0].tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)
    assert ids[0] == sorted(expected, key=lambda key: -expected[key])


def test_a_document_without_a_shared_term_is_no_hit() -> None:
    scores, ids = Bm25(list("abcd"), TEXTS).search(["the unheard of", "socket", ""], k=10)
    assert ids == [[], ["c"], []]
    assert [len(row) for row in scores] == [0, 1, 0]


def test_k_limits_hits_and_ties_keep_corpus_order() -> None:
    engine = Bm25(list("abcd"), ["same words"] * 4)
    scores, ids = engine.search(["same"], k=2)
    assert ids == [["a", "b"]]
    assert np.ptp(scores[0]) == 0
