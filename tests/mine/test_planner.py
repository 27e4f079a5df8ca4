"""Term importances by idf, by a table and by occlusion, against a plain float64 computation."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mine_logs import PARAMS, engine_in, engine_table
from teach_fakes import write_tower
from towers import write_static
from transformers import BertModel, BertTokenizerFast

from slimtower.common.errors import UserError
from steps.core.texts import words
from steps.mine.engine import Engine
from steps.mine.params import MineParams
from steps.mine.planner import (
    OcclusionPlanner,
    idf_importances,
    importances,
    occluded,
    query_terms,
    shares,
    table_importances,
)

QUERIES = {"query": pa.int64(), "dataset": pa.string(), "text": pa.string()}
SCORES = {"term": pa.string(), "score": pa.float32()}
WORDS = st.sampled_from(["sum", "Sum", "axis", "array", "the", "été", "x1"])
TEXTS = ["how to sum rows", "Sort sort columns, all columns at once.", "how to filter-rows to rows", "count"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("planner")
    with engine_in(folder) as opened:
        yield opened


@pytest.mark.medium
@settings(max_examples=20, deadline=None)
@given(logs=st.lists(st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=8), min_size=1, max_size=3))
def test_idf_importance_is_the_share_of_the_querys_idf(engine: Engine, logs: list[list[list[str]]]) -> None:
    rows = [
        (100 * d + q, f"d{d}", ", ".join(texts)) for d, queries in enumerate(logs) for q, texts in enumerate(queries)
    ]
    table = idf_importances(engine, query_terms(engine, engine_table(engine, QUERIES, rows)))
    importance_of = {(row["query"], row["word"]): row["importance"] for row in engine.rows(table).to_pylist()}

    expected: dict[tuple[int, str], float] = {}
    for d, queries in enumerate(logs):
        terms = {100 * d + q: {word.lower() for word in texts} for q, texts in enumerate(queries) if texts}
        counts = Counter(term for words_of_query in terms.values() for term in words_of_query)
        n = len(terms)
        idf = {term: math.log(1 + (n - df + 0.5) / (df + 0.5)) for term, df in counts.items()}
        for query, words_of_query in terms.items():
            expected |= {
                (query, term): idf[term] / math.fsum(idf[t] for t in words_of_query) for term in words_of_query
            }
    assert importance_of.keys() == expected.keys()
    assert all(importance_of[key] == pytest.approx(expected[key], abs=1e-4) for key in expected)


def test_the_planner_table_takes_the_users_scores(engine: Engine) -> None:
    queries = engine_table(engine, QUERIES, [(1, "d", "the sum of the axis")])
    scores = engine_table(engine, SCORES, [("the", 0.5), ("of", 0.5), ("sum", 1.0), ("axis", 2.0)])
    params = MineParams(**{**PARAMS, "planner": "table"})
    rows = engine.rows(importances(engine, queries, params, scores)).to_pylist()
    assert {row["word"]: row["importance"] for row in rows} == {"the": 0.125, "of": 0.125, "sum": 0.25, "axis": 0.5}
    with pytest.raises(UserError, match=r"mine\.planner: .*ingest\.term_scores"):
        importances(engine, queries, params, engine_table(engine, SCORES, []))


@pytest.mark.medium
def test_the_planner_occlusion_goes_by_the_base_encoder(engine: Engine) -> None:
    queries = engine_table(engine, QUERIES, [(1, "d", "the eigenvalues of a matrix")])
    params = MineParams(**{**PARAMS, "planner": "occlusion"})
    rows = engine.rows(importances(engine, queries, params, engine_table(engine, SCORES, []))).to_pylist()
    by_word = {row["word"]: row["importance"] for row in rows}
    assert math.fsum(by_word.values()) == pytest.approx(1, abs=1e-3)
    assert max(by_word, key=lambda word: by_word[word]) == "eigenvalues"
    assert by_word["eigenvalues"] > 10 * by_word["a"]


def test_a_tables_importance_is_the_share_of_the_querys_scores() -> None:
    scores = {"the": 0.5, "sum": 2.0, "axis": 5.5, "of": 0.0}
    by_text = table_importances(["The sum of the axis", "sum?", "sum of eigenvalues", "of of", "?"], scores)
    unknown = {"sum": 2 / 7.5, "of": 0.0, "eigenvalues": 5.5 / 7.5}  # counts as much as the highest
    everything = {"the": 0.5 / 8, "sum": 2 / 8, "of": 0.0, "axis": 5.5 / 8}
    assert by_text == [everything, {"sum": 1.0}, unknown, {"of": 1.0}, {}]
    assert shares({"a": 0.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}


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
        remainder = re.sub(rf"\b{term}\b", "", text, flags=re.IGNORECASE)
        cosine = torch.cosine_similarity(embedding(tower, text), embedding(tower, remainder), dim=0).item()
        changes[term] = max(1 - cosine, 0.0)
    return {term: change / math.fsum(changes.values()) for term, change in changes.items()}


@pytest.mark.medium
def test_importance_is_the_terms_share_of_the_change(tower: Path, planner: OcclusionPlanner) -> None:
    by_text = planner.importances(TEXTS)
    for text, by_term in zip(TEXTS[:3], by_text, strict=False):
        assert by_term == pytest.approx(expected(tower, text), abs=1e-4)
        assert list(by_term) == list(dict.fromkeys(words(text)))
        assert math.fsum(by_term.values()) == pytest.approx(1, abs=1e-3)
        assert all(value == round(value, 4) for value in by_term.values())
    assert len(set(by_text[0].values())) == 4  # the network tells the terms apart
    assert by_text[3] == {"count": 1.0}


def test_a_texts_importances_hang_neither_on_its_neighbours_nor_on_windows(
    planner: OcclusionPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = planner.importances([*TEXTS, *TEXTS[:2], ""])
    monkeypatch.setattr("steps.mine.planner._WINDOW_BATCHES", 1)
    for text, by_term in zip(TEXTS, planner.importances(TEXTS), strict=True):
        assert by_term == pytest.approx(planner.importances([text])[0], abs=2e-4)
        assert by_term == pytest.approx(together[TEXTS.index(text)], abs=2e-4)
    assert together[4:] == [*together[:2], {}]
    assert planner.importances([]) == []


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
    assert occluded("İİ İzmir sum") == {"ii": "İzmir sum", "izmir": "İİ sum", "sum": "İİ İzmir"}
    assert occluded("北京大学 x") == {"北京": "大学 x", "京大": "北学 x", "大学": "北京 x", "x": "北京大学"}


def test_a_table_of_tokens_tells_terms_apart(tmp_path: Path) -> None:
    planner = OcclusionPlanner(str(write_static(tmp_path / "static", ["sum", "rows"])), batch_size=4, max_length=32)
    [by_term] = planner.importances(["sum rows"])
    assert by_term["sum"] != by_term["rows"]
