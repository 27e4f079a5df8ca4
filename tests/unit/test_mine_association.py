"""Algorithm 1 against a pairwise brute force."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mine_logs import engine_table

from steps.mine.association import click_associations
from steps.mine.engine import Engine, open_engine
from steps.mine.planner import idf_importances, query_terms

IMPORTANCES = {"dataset": pa.string(), "query_id": pa.string(), "term": pa.string(), "importance": pa.float64()}
Scores = dict[tuple[str, str], dict[str, float]]  # (dataset, query_id) -> term -> importance


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("association")
    with open_engine("500MB", folder) as opened:
        yield opened


def pairwise(
    scores: Scores, givers: set[str], threshold: float, top_terms: int, min_terms: int, cap: int
) -> tuple[set[tuple[str, str]], int]:
    """Algorithm 1 as printed: every pair compared. Returns the capped associations, and the number without the cap."""
    kept: set[tuple[str, str]] = set()
    found = 0
    for (dataset, q1), s1 in scores.items():
        top = sorted(s1, key=lambda term: (-s1[term], term))[:top_terms]
        ranked = []
        for (other_dataset, q2), s2 in scores.items():
            if q1 == q2 or dataset != other_dataset or q2 not in givers or min(len(s1), len(s2)) < min_terms:
                continue
            if all(s2.get(term, 0.0) > threshold for term in top):
                ranked.append((-sum(round(s2[term] * 1e6) for term in top), q2))
        found += len(ranked)
        kept |= {(q1, q2) for _, q2 in sorted(ranked)[:cap]}
    return kept, found


def mined(engine: Engine, scores: Scores, givers: set[str], shuffle: int = 0, **knobs: float) -> tuple[set, int]:
    rows = [(d, q, term, value) for (d, q), s in scores.items() for term, value in s.items()]
    random.Random(shuffle).shuffle(rows)
    importances = engine_table(engine, IMPORTANCES, rows)
    table = engine_table(engine, {"query_id": pa.string()}, [(giver,) for giver in givers])
    result = click_associations(engine, importances, table, **knobs)
    pairs = [(row["query_id"], row["other_query_id"]) for row in engine.rows(result.kept).to_pylist()]
    assert len(pairs) == len(set(pairs))
    return set(pairs), result.found


QUERY = st.dictionaries(st.sampled_from("abcdé"), st.integers(1, 20).map(lambda n: n / 20), min_size=1, max_size=5)


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(data=st.data())
def test_equals_the_pairwise_algorithm(engine: Engine, data: st.DataObject) -> None:
    logs = data.draw(st.lists(st.lists(QUERY, min_size=1, max_size=14), min_size=1, max_size=6))
    scores = {(f"d{d}", f"d{d}/q{i}"): terms for d, log in enumerate(logs) for i, terms in enumerate(log)}
    givers = {q for _, q in scores if data.draw(st.integers(0, 4))}
    knobs = {
        "threshold": data.draw(st.sampled_from([0.0, 0.1, 0.3, 0.5])),
        "top_terms": data.draw(st.integers(1, 4)),
        "min_terms": data.draw(st.integers(1, 3)),
        "cap": data.draw(st.integers(1, 4)),
    }
    assert mined(engine, scores, givers, data.draw(st.integers(0, 3)), **knobs) == pairwise(scores, givers, **knobs)


def test_equals_the_pairwise_algorithm_on_200_random_logs_with_idf(engine: Engine) -> None:
    """Each log is a data set of its own, which also shows that associations never leave one."""
    draw = random.Random(3)
    vocabulary = [f"w{i}" for i in range(12)]
    weights = [1 / (i + 1) for i in range(12)]
    rows = [
        (f"log{log}", f"log{log}/q{i}", " ".join(draw.choices(vocabulary, weights, k=draw.randint(1, 6))))
        for log in range(200)
        for i in range(draw.randint(2, 25))
    ]
    texts = {"dataset": pa.string(), "query_id": pa.string(), "text": pa.string()}
    importances = engine.keep(idf_importances(query_terms(engine, engine_table(engine, texts, rows))))
    by_log: dict[str, Scores] = {}
    for row in engine.rows(importances).to_pylist():
        scores = by_log.setdefault(row["dataset"], {})
        scores.setdefault((row["dataset"], row["query_id"]), {})[row["term"]] = row["importance"]
    givers = {row[1] for row in rows if draw.random() < 0.8}
    knobs = {"threshold": 0.2, "top_terms": 2, "min_terms": 2, "cap": 3}
    everything = {key: value for scores in by_log.values() for key, value in scores.items()}
    found, total = mined(engine, everything, givers, **knobs)

    expected = [pairwise(scores, givers, **knobs) for scores in by_log.values()]
    assert found == set().union(*(pairs for pairs, _ in expected))
    assert total == sum(count for _, count in expected)
    assert total > len(found) > 500  # the cap bites, and there was something to compare


def test_direction_follows_the_top_terms_of_the_query_that_receives(engine: Engine) -> None:
    short = {"sum": 0.6, "axis": 0.4}
    long = {"sum": 0.3, "axis": 0.2, "weighted": 0.5}
    knobs = {"threshold": 0.1, "top_terms": 2, "min_terms": 2, "cap": 5}
    pairs, _ = mined(engine, {("d", "short"): short, ("d", "long"): long}, {"short", "long"}, **knobs)
    assert pairs == {("short", "long")}  # "weighted" is a top term of long, and short lacks it


def test_threshold_is_exclusive(engine: Engine) -> None:
    scores = {("d", "a"): {"x": 0.5, "y": 0.5}, ("d", "b"): {"x": 0.25, "y": 0.25, "z": 0.5}}
    at = {"threshold": 0.25, "top_terms": 2, "min_terms": 2, "cap": 5}
    assert mined(engine, scores, {"a", "b"}, **at)[0] == set()
    assert mined(engine, scores, {"a", "b"}, **(at | {"threshold": 0.2499}))[0] == {("a", "b")}
