"""Term importances against a plain float64 computation."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mine_logs import engine_table

from steps.mine.engine import Engine, open_engine
from steps.mine.planner import idf_importances, query_terms

QUERIES = {"dataset": pa.string(), "query_id": pa.string(), "text": pa.string()}
WORDS = st.sampled_from(["sum", "Sum", "axis", "array", "the", "été", "x1"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("planner")
    with open_engine("500MB", folder) as opened:
        yield opened


@settings(max_examples=20, deadline=None)
@given(logs=st.lists(st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=8), min_size=1, max_size=3))
def test_idf_importance_is_the_share_of_the_querys_idf(engine: Engine, logs: list[list[list[str]]]) -> None:
    rows = [
        (f"d{d}", f"d{d}/q{q}", ", ".join(texts)) for d, queries in enumerate(logs) for q, texts in enumerate(queries)
    ]
    table = idf_importances(query_terms(engine, engine_table(engine, QUERIES, rows)))
    found = {(row["query_id"], row["term"]): row["importance"] for row in engine.rows(table).to_pylist()}

    expected: dict[tuple[str, str], float] = {}
    for d, queries in enumerate(logs):
        terms = {f"d{d}/q{q}": {word.lower() for word in texts} for q, texts in enumerate(queries) if texts}
        counts = Counter(term for held in terms.values() for term in held)
        n = len(terms)
        idf = {term: math.log(1 + (n - df + 0.5) / (df + 0.5)) for term, df in counts.items()}
        for query_id, held in terms.items():
            expected |= {(query_id, term): idf[term] / math.fsum(idf[t] for t in held) for term in held}
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=1e-4) for key in expected)


def test_importances_sum_to_one_and_rare_words_outweigh_common_ones(engine: Engine) -> None:
    rows = [("d", f"q{i}", f"the sum of thing{i}") for i in range(50)]
    table = engine.rows(idf_importances(query_terms(engine, engine_table(engine, QUERIES, rows)))).to_pylist()
    first = {row["term"]: row["importance"] for row in table if row["query_id"] == "q0"}
    assert math.fsum(first.values()) == pytest.approx(1, abs=1e-12)
    assert first["thing0"] > 0.95
    assert first["the"] == first["of"] > 0
