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
from steps.mine.engine import Engine
from steps.mine.planner import term_key

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
    strongest: Pairs = set()
    total = 0
    for (dataset, q1), s1 in scores.items():
        ranked = []
        for (other_dataset, q2), s2 in scores.items():
            if q1 == q2 or dataset != other_dataset or q2 not in sources or min(len(s1), len(s2)) < min_terms:
                continue
            strength, back = holds(s1, s2, threshold, top_terms), holds(s2, s1, threshold, top_terms)
            if strength >= 0 and (back >= 0 or not mutual):
                ranked.append((-strength - (back if mutual else 0), q2))
        total += len(ranked)
        strongest |= {(q1, q2) for _, q2 in sorted(ranked)[:cap]}
    return strongest, total


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
