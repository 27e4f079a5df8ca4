"""Queries of one language on documents of another: which pairs count, and what a student keeps."""

from math import log2
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.cross_lingual import mean_ndcg, measure, search_languages
from bench.tables.pipeline import Pipeline
from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet

DOCUMENTS = np.eye(6, dtype=np.float32)[[0, 1, 2, 0, 1, 2]]
DOC_IDS = [f"{language}/{page}" for language in ("de", "en") for page in "abc"]


def pipeline(sets: list[JudgedSet]) -> Pipeline:
    run = Pipeline(Path("unread"))
    run.__dict__.update(  # what it would read of its folder
        judged_sets=sets,
        documents=DOCUMENTS,
        corpus={"de": (np.arange(3), DOC_IDS[:3]), "en": (np.arange(3, 6), DOC_IDS[3:])},
        teacher=SimpleNamespace(similarity_fn_name="cosine"),
    )
    return run


def test_each_language_searches_each_by_the_same_pages() -> None:
    judged = [
        JudgedSet("de", "test", ["de/q"], ["Frage"], {"de/q": {"de/a": 1}}),
        JudgedSet("en", "dev", ["en/0"], ["not tested"], {"en/0": {"en/a": 1}}),
        JudgedSet("en", "test", ["en/q"], ["question"], {"en/q": {"en/b": 2}}),
    ]
    second = np.array([[0.5, 0.9, 0, 0, 0, 0]], np.float32)  # page b first, page a second
    matrix = search_languages(pipeline(judged), {"de": second, "en": second})
    assert matrix == {
        "de": {"de": pytest.approx(1 / log2(3), abs=1e-4), "en": pytest.approx(1 / log2(3), abs=1e-4)},
        "en": {"de": 1.0, "en": 1.0},
    }


def test_means_within_and_across_languages_are_of_their_pairs_alone() -> None:
    matrix = {"de": {"de": 0.8, "en": 0.1}, "en": {"de": 0.3, "en": 0.6}}
    assert mean_ndcg(matrix, across=False) == pytest.approx(0.7)
    assert mean_ndcg(matrix, across=True) == pytest.approx(0.2)


def test_a_run_of_one_language_has_nothing_to_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pipeline([JudgedSet("de", "test", ["de/q"], ["Frage"], {"de/q": {"de/a": 1}})])
    monkeypatch.setattr("bench.cross_lingual.open_pipeline", lambda _: one)
    with pytest.raises(UserError, match="multilingual"):
        measure(tmp_path)
