"""Term importances against a plain float64 computation."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mine_logs import PARAMS, engine_in, engine_table

from slimtower.common.errors import UserError
from steps.mine.engine import Engine
from steps.mine.params import MineParams
from steps.mine.planner import idf_importances, importances, query_terms
from steps.mine.term_table import shares, table_importances

QUERIES = {"query": pa.int64(), "dataset": pa.string(), "text": pa.string()}
SCORES = {"term": pa.string(), "score": pa.float32()}
WORDS = st.sampled_from(["sum", "Sum", "axis", "array", "the", "été", "x1"])


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
    found = {(row["query"], row["word"]): row["importance"] for row in engine.rows(table).to_pylist()}

    expected: dict[tuple[int, str], float] = {}
    for d, queries in enumerate(logs):
        terms = {100 * d + q: {word.lower() for word in texts} for q, texts in enumerate(queries) if texts}
        counts = Counter(term for held in terms.values() for term in held)
        n = len(terms)
        idf = {term: math.log(1 + (n - df + 0.5) / (df + 0.5)) for term, df in counts.items()}
        for query, held in terms.items():
            expected |= {(query, term): idf[term] / math.fsum(idf[t] for t in held) for term in held}
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=1e-4) for key in expected)


def test_the_planner_table_takes_the_users_scores(engine: Engine) -> None:
    queries = engine_table(engine, QUERIES, [(1, "d", "the sum of the axis")])
    scores = engine_table(engine, SCORES, [("the", 0.5), ("of", 0.5), ("sum", 1.0), ("axis", 2.0)])
    params = MineParams(**{**PARAMS, "planner": "table"})
    rows = engine.rows(importances(engine, queries, params, scores)).to_pylist()
    assert {row["word"]: row["importance"] for row in rows} == {"the": 0.125, "of": 0.125, "sum": 0.25, "axis": 0.5}


@pytest.mark.medium
def test_the_planner_occlusion_goes_by_the_base_encoder(engine: Engine) -> None:
    queries = engine_table(engine, QUERIES, [(1, "d", "the eigenvalues of a matrix")])
    params = MineParams(**{**PARAMS, "planner": "occlusion"})
    rows = engine.rows(importances(engine, queries, params, engine_table(engine, SCORES, []))).to_pylist()
    found = {row["word"]: row["importance"] for row in rows}
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-3)
    assert max(found, key=lambda word: found[word]) == "eigenvalues"
    assert found["eigenvalues"] > 10 * found["a"]


def test_a_tables_importance_is_the_share_of_the_querys_scores() -> None:
    scores = {"the": 0.5, "sum": 2.0, "axis": 5.5, "of": 0.0}
    found = table_importances(["The sum of the axis", "sum?", "sum of eigenvalues", "of of", "?"], scores)
    unknown = {"sum": 2 / 7.5, "of": 0.0, "eigenvalues": 5.5 / 7.5}  # counts as much as the highest
    everything = {"the": 0.5 / 8, "sum": 2 / 8, "of": 0.0, "axis": 5.5 / 8}
    assert found == [everything, {"sum": 1.0}, unknown, {"of": 1.0}, {}]
    assert shares({"a": 0.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}
    with pytest.raises(UserError, match="empty"):
        table_importances(["sum"], {})
