"""Algorithm 1 against a pairwise brute force."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mine_logs import engine_in, engine_table

from steps.mine.association import click_associations, relevance_associations
from steps.mine.catalogue import key
from steps.mine.engine import Engine
from steps.mine.planner import idf_importances, query_terms, term_key

IMPORTANCES = {"query": pa.int64(), "term": pa.int64(), "importance": pa.float64()}
Scores = dict[tuple[str, int], dict[int, float]]  # (dataset, query) -> term -> importance
Pairs = set[tuple[int, int]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("association")
    with engine_in(folder) as opened:
        yield opened


def holds(receiver: dict[int, float], source: dict[int, float], threshold: float, top_terms: int) -> float:
    """Strength of `receiver <- source` in millionths, or -1: every top term of one is important in the other."""
    top = sorted(receiver, key=lambda term: (-receiver[term], term))[:top_terms]
    if not all(source.get(term, 0.0) > threshold for term in top):
        return -1
    return sum(round(source[term] * 1e6) for term in top)


def pairwise(
    scores: Scores, sources: set[int], threshold: float, top_terms: int, min_terms: int, cap: int, mutual: bool = False
) -> tuple[Pairs, int]:
    """Algorithm 1 as printed: every pair compared. Returns the capped associations, and the number without the cap."""
    kept: Pairs = set()
    found = 0
    for (dataset, q1), s1 in scores.items():
        ranked = []
        for (other_dataset, q2), s2 in scores.items():
            if q1 == q2 or dataset != other_dataset or q2 not in sources or min(len(s1), len(s2)) < min_terms:
                continue
            strength, back = holds(s1, s2, threshold, top_terms), holds(s2, s1, threshold, top_terms)
            if strength >= 0 and (back >= 0 or not mutual):
                ranked.append((-strength - (back if mutual else 0), q2))
        found += len(ranked)
        kept |= {(q1, q2) for _, q2 in sorted(ranked)[:cap]}
    return kept, found


def mined(
    engine: Engine, scores: Scores, sources: set[int], shuffle: int = 0, mutual: bool = False, **knobs: float
) -> tuple[Pairs, int]:
    rows = [(q, term, value) for (_, q), s in scores.items() for term, value in s.items()]
    random.Random(shuffle).shuffle(rows)
    importances = engine_table(engine, IMPORTANCES, rows)
    table = engine_table(engine, {"query": pa.int64()}, [(source,) for source in sources])
    associate = relevance_associations if mutual else click_associations
    result = associate(engine, importances, table, **knobs)
    pairs = [(row["query"], row["other_query"]) for row in engine.rows(result.strongest).to_pylist()]
    assert len(pairs) == len(set(pairs))
    return set(pairs), result.total


QUERY = st.dictionaries(st.sampled_from("abcdé"), st.integers(1, 20).map(lambda n: n / 20), min_size=1, max_size=5)


@pytest.mark.medium
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(data=st.data())
def test_equals_the_pairwise_algorithm(engine: Engine, data: st.DataObject) -> None:
    logs = data.draw(st.lists(st.lists(QUERY, min_size=1, max_size=14), min_size=1, max_size=6))
    scores = {
        (f"d{d}", 100 * d + i): {term_key(f"d{d}", word): value for word, value in terms.items()}
        for d, log in enumerate(logs)
        for i, terms in enumerate(log)
    }
    sources = {q for _, q in sorted(scores) if data.draw(st.integers(0, 4))}
    knobs = {
        "threshold": data.draw(st.sampled_from([0.0, 0.1, 0.3, 0.5])),
        "top_terms": data.draw(st.integers(1, 4)),
        "min_terms": data.draw(st.integers(1, 3)),
        "cap": data.draw(st.integers(1, 4)),
    }
    shuffle, mutual = data.draw(st.integers(0, 3)), data.draw(st.booleans())
    expected = pairwise(scores, sources, mutual=mutual, **knobs)
    assert mined(engine, scores, sources, shuffle, mutual, **knobs) == expected


@pytest.mark.medium
@pytest.mark.parametrize("mutual", [False, True])
def test_equals_the_pairwise_algorithm_on_200_random_logs_with_idf(engine: Engine, mutual: bool) -> None:
    """Each log is a data set of its own, which also shows that associations never leave one."""
    draw = random.Random(3)
    vocabulary = [f"w{i}" for i in range(12)]
    weights = [1 / (i + 1) for i in range(12)]
    rows = [
        (key(f"{log}/{i}"), f"log{log}", " ".join(draw.choices(vocabulary, weights, k=draw.randint(1, 6))))
        for log in range(200)
        for i in range(draw.randint(2, 25))
    ]
    texts = {"query": pa.int64(), "dataset": pa.string(), "text": pa.string()}
    importances = idf_importances(engine, query_terms(engine, engine_table(engine, texts, rows)))
    by_log: dict[str, Scores] = {}
    for row in engine.rows(importances).to_pylist():
        scores = by_log.setdefault(row["dataset"], {})
        scores.setdefault((row["dataset"], row["query"]), {})[row["term"]] = row["importance"]
    sources = {row[0] for row in rows if draw.random() < 0.8}
    knobs = {"threshold": 0.05 if mutual else 0.2, "top_terms": 2, "min_terms": 1 + mutual, "cap": 1 if mutual else 3}
    everything = {name: value for scores in by_log.values() for name, value in scores.items()}
    found, total = mined(engine, everything, sources, mutual=mutual, **knobs)

    expected = [pairwise(scores, sources, mutual=mutual, **knobs) for scores in by_log.values()]
    assert found == set().union(*(pairs for pairs, _ in expected))
    assert total == sum(count for _, count in expected)
    assert total > len(found) > 300  # the cap bites, and there was something to compare


@pytest.mark.medium
def test_direction_follows_the_top_terms_of_the_query_that_receives(engine: Engine) -> None:
    total, axis, weighted, short, long = 1, 2, 3, 10, 11
    scores = {("d", short): {total: 0.6, axis: 0.4}, ("d", long): {total: 0.3, axis: 0.2, weighted: 0.5}}
    knobs = {"threshold": 0.1, "top_terms": 2, "min_terms": 2, "cap": 5}
    # "weighted" is a top term of the long query, and the short one lacks it
    assert mined(engine, scores, {short, long}, **knobs)[0] == {(short, long)}
    assert mined(engine, scores, {short, long}, mutual=True, **knobs)[0] == set()


@pytest.mark.medium
def test_threshold_is_exclusive(engine: Engine) -> None:
    scores = {("d", 1): {7: 0.5, 8: 0.5}, ("d", 2): {7: 0.25, 8: 0.25, 9: 0.5}}
    at = {"threshold": 0.25, "top_terms": 2, "min_terms": 2, "cap": 5}
    assert mined(engine, scores, {1, 2}, **at)[0] == set()
    assert mined(engine, scores, {1, 2}, **(at | {"threshold": 0.2499}))[0] == {(1, 2)}
