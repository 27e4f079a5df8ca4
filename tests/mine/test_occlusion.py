"""Importances by occlusion against a float64 computation on the bare network."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from teach_fakes import write_tower
from towers import write_static
from transformers import BertModel, BertTokenizerFast

from steps.core.texts import words
from steps.mine.occlusion import OcclusionPlanner, occluded

TEXTS = ["how to sum rows", "Sort sort columns, all columns at once.", "how to filter-rows to rows", "count"]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tower(tmp_path_factory.mktemp("occlusion") / "model")


@pytest.fixture(scope="module")
def planner(tower: Path) -> OcclusionPlanner:
    return OcclusionPlanner(str(tower), batch_size=4, max_length=32)


def embedding(tower: Path, text: str) -> torch.Tensor:
    """Mean over the last hidden states in float64."""
    bert = BertModel.from_pretrained(tower).double().eval()
    with torch.inference_mode():
        return bert(**BertTokenizerFast.from_pretrained(tower)(text, return_tensors="pt")).last_hidden_state[0].mean(0)


def expected(tower: Path, text: str) -> dict[str, float]:
    changes = {}
    for term in dict.fromkeys(re.findall("[a-z]+", text.lower())):
        left = re.sub(rf"\b{term}\b", "", text, flags=re.IGNORECASE)
        cosine = torch.cosine_similarity(embedding(tower, text), embedding(tower, left), dim=0).item()
        changes[term] = max(1 - cosine, 0.0)
    return {term: change / math.fsum(changes.values()) for term, change in changes.items()}


@pytest.mark.medium
def test_importance_is_the_terms_share_of_the_change(tower: Path, planner: OcclusionPlanner) -> None:
    found = planner.importances(TEXTS)
    for text, importances in zip(TEXTS[:3], found, strict=False):
        assert importances == pytest.approx(expected(tower, text), abs=1e-4)
        assert list(importances) == list(dict.fromkeys(words(text)))
        assert math.fsum(importances.values()) == pytest.approx(1, abs=1e-3)
        assert all(value == round(value, 4) for value in importances.values())
    assert len(set(found[0].values())) == 4  # the network tells the terms apart
    assert found[3] == {"count": 1.0}


def test_a_texts_importances_hang_neither_on_its_neighbours_nor_on_windows(
    planner: OcclusionPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = planner.importances([*TEXTS, *TEXTS[:2], ""])
    monkeypatch.setattr("steps.mine.occlusion._WINDOW_BATCHES", 1)
    for text, found in zip(TEXTS, planner.importances(TEXTS), strict=True):
        assert found == pytest.approx(planner.importances([text])[0], abs=2e-4)
        assert found == pytest.approx(together[TEXTS.index(text)], abs=2e-4)
    assert together[4:] == [*together[:2], {}]
    assert planner.importances([]) == []


def test_each_distinct_text_is_encoded_once(planner: OcclusionPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encode = planner.tower.encode_query

    def remember(texts: list[str], **named: Any) -> Any:
        seen.extend(texts)
        return encode(texts, **named)

    monkeypatch.setattr(planner.tower, "encode_query", remember)
    planner.importances(["sum rows", "sort rows", "sum rows", "count"])
    assert sorted(seen) == ["rows", "sort", "sort rows", "sum", "sum rows"]


def test_terms_that_change_nothing_share_equally(tower: Path) -> None:
    reads_two = OcclusionPlanner(str(tower), batch_size=4, max_length=3)  # [CLS], one word, [SEP]
    assert reads_two.importances(["sum sort rows", "zzz yyy xxx www"]) == [
        {"sum": 1.0, "sort": 0.0, "rows": 0.0},
        dict.fromkeys(["zzz", "yyy", "xxx", "www"], 0.25),
    ]


def test_all_occurrences_of_a_term_are_left_out_and_nothing_else() -> None:
    assert occluded("The cat, the cat's CAT; concat wi-fi") == {
        "the": "cat, cat's CAT; concat wi-fi", "cat": "The , the 's ; concat wi-fi",
        "s": "The cat, the cat' CAT; concat wi-fi", "concat": "The cat, the cat's CAT; wi-fi",
        "wi": "The cat, the cat's CAT; concat -fi", "fi": "The cat, the cat's CAT; concat wi-",
    }  # fmt: skip
    assert occluded(" ?! ") == {}
    assert occluded("北京大学 x") == {"北京": "大学 x", "京大": "北学 x", "大学": "北京 x", "x": "北京大学"}


def test_letters_that_lower_to_two_keep_the_spans_in_place() -> None:
    assert occluded("İİ İzmir sum") == {"ii": "İzmir sum", "izmir": "İİ sum", "sum": "İİ İzmir"}


def test_a_table_of_tokens_tells_terms_apart(tmp_path: Path) -> None:
    planner = OcclusionPlanner(str(write_static(tmp_path / "static", ["sum", "rows"])), batch_size=4, max_length=32)
    [found] = planner.importances(["sum rows"])
    assert found["sum"] != found["rows"]
