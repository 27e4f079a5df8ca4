"""The simulated sessions follow the click model that they claim, over train queries only."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from slimtower.common.document_texts import DocumentTemplate
from steps.ingest import click_simulation
from steps.ingest.click_simulation import bm25_results, simulate_sessions, with_relevant
from steps.ingest.source import Document, Query

simulate = partial(simulate_sessions, template=DocumentTemplate())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the constants of the click model."""

    def sets(sessions: int, eta: float = 1.0, relevant: float = 0.8, irrelevant: float = 0.1) -> None:
        monkeypatch.setattr(click_simulation, "SESSIONS_PER_QUERY", sessions)
        monkeypatch.setattr(click_simulation, "PROPENSITY_EXPONENT", eta)
        monkeypatch.setattr(click_simulation, "CLICK_IF_RELEVANT", relevant)
        monkeypatch.setattr(click_simulation, "CLICK_IF_NOT", irrelevant)

    return sets


DOCUMENTS = [Document(f"api/d{n:02d}", "api", f"pkg.f{n}", "pkg", f"word{n} common text") for n in range(40)]
QUERIES = [
    Query(f"api/q{n:02d}", "api", f"word{n} common", split, "api/summaries", n)
    for n, split in enumerate(["train"] * 20 + ["dev"] * 5 + ["test"] * 5)
]
# the last train queries are judged for a document that BM25 cannot find
RELEVANT = {f"api/q{n:02d}": [f"api/d{n:02d}" if n < 10 else f"api/d{39 - n:02d}"] for n in range(30)}


def test_sessions_cover_train_queries_only_in_rising_time(model: Callable[..., None]) -> None:
    model(3)
    table = simulate(QUERIES, RELEVANT, DOCUMENTS, seed=1)
    assert table.equals(simulate(QUERIES, RELEVANT, DOCUMENTS, seed=1))
    assert not table.equals(simulate(QUERIES, RELEVANT, DOCUMENTS, seed=2))
    rows = table.to_pylist()
    sessions = [rows[at : at + 10] for at in range(0, len(rows), 10)]
    assert len(sessions) == 60
    query_ids = [session[0]["query_id"] for session in sessions]
    assert set(query_ids) == {f"api/q{n:02d}" for n in range(20)}
    assert {query_ids.count(query) for query in query_ids} == {3}
    for session in sessions:
        assert [row["rank"] for row in session] == list(range(1, 11))
        assert len({row["doc_id"] for row in session}) == 10
        assert len({(row["session_id"], row["query_id"], row["timestamp"]) for row in session}) == 1
        assert set(RELEVANT[session[0]["query_id"]]) <= {row["doc_id"] for row in session}
    times = [session[0]["timestamp"] for session in sessions]
    assert times == sorted(set(times))


@pytest.mark.medium
def test_click_rates_recover_the_position_bias(model: Callable[..., None]) -> None:
    """Clicks over shown, irrelevant results only, at rank r against rank 1: (1/r)^eta."""
    for eta in (0.5, 1.0):
        model(2000, eta, 0.8, 0.6)
        table = simulate(QUERIES, {q.query_id: [] for q in QUERIES}, DOCUMENTS, 2)
        clicked = np.asarray(table["clicked"]).reshape(-1, 10)
        rate = clicked.mean(axis=0)
        expected = 0.6 * np.arange(1, 11) ** -eta
        error = np.sqrt(expected * (1 - expected) / len(clicked))  # binomial standard error
        assert np.all(np.abs(rate - expected) < 5 * error)


@pytest.mark.medium
def test_relevant_results_draw_more_clicks_at_equal_rank(model: Callable[..., None]) -> None:
    model(500)
    rows = simulate(QUERIES, RELEVANT, DOCUMENTS, seed=3).to_pylist()
    first = [row for row in rows if row["rank"] == 1]
    relevant = [row["clicked"] for row in first if row["doc_id"] in RELEVANT[row["query_id"]]]
    irrelevant = [row["clicked"] for row in first if row["doc_id"] not in RELEVANT[row["query_id"]]]
    assert np.mean(relevant) == pytest.approx(0.8, abs=0.05)
    assert np.mean(irrelevant) == pytest.approx(0.1, abs=0.05)


def test_missing_relevant_results_take_the_place_of_irrelevant_ones() -> None:
    ranked = np.array([4, 7, 1, 9])
    for seed in range(20):
        results = with_relevant(ranked, [9, 5, 6], np.random.default_rng(seed)).tolist()
        assert len(results) == len(set(results)) == 4
        assert {9, 5, 6, 4} == set(results)
    assert with_relevant(ranked, [1, 2, 3, 5, 6], np.random.default_rng(0)).size == 4
    assert with_relevant(ranked, [7], np.random.default_rng(0)) is ranked


def test_no_sessions_and_small_corpora(model: Callable[..., None]) -> None:
    model(0)
    assert simulate(QUERIES, RELEVANT, DOCUMENTS, seed=1).num_rows == 0
    model(1)
    few = simulate(QUERIES[:1], {"api/q00": ["api/d00"]}, DOCUMENTS[:4], seed=1)
    assert few.num_rows == 4
    strange = [QUERIES[0]._replace(text="¿?")]
    assert simulate(strange, {"api/q00": ["api/d01"]}, DOCUMENTS, seed=1).num_rows == 10


def test_results_are_found_in_the_texts_that_the_template_makes() -> None:
    documents = [document._replace(topic=f"topic{at}") for at, document in enumerate(DOCUMENTS)]
    for template, first in ((DocumentTemplate(), 0), (DocumentTemplate("{title} {topic} {content}"), 7)):
        assert bm25_results(["topic7"], documents, 3, template)[0][0] == first
