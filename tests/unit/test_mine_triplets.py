"""Triplets against a plain Python reference, and the guards of the hard negatives."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mine_logs import engine_table

from steps.mine.engine import Engine, open_engine
from steps.mine.triplets import Triplets, click_triplets

JUDGED = {
    "query_id": pa.string(),
    "doc_id": pa.string(),
    "shown": pa.int64(),
    "clicks": pa.int64(),
    "text_key": pa.string(),
}
ASSOCIATIONS = {"query_id": pa.string(), "other_query_id": pa.string(), "strength": pa.int64()}
KNOBS: dict[str, Any] = {"max_positives": 2, "max_negatives": 3, "multi_hop_weight": 0.25, "seed": 5}

Log = dict[tuple[str, str], int]  # (query, document) shown -> clicks
Links = dict[tuple[str, str], int]  # (query, other query) -> strength


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("triplets")
    with open_engine("500MB", folder) as opened:
        yield opened


def mined(engine: Engine, log: Log, links: Links, texts: dict[str, str], **changes: Any) -> tuple[list, Triplets]:
    judged = [(q, d, max(clicks, 1), clicks, texts.get(d, d)) for (q, d), clicks in log.items()]
    result = click_triplets(
        engine,
        engine_table(engine, JUDGED, judged),
        engine_table(engine, ASSOCIATIONS, [(q, other, strength) for (q, other), strength in links.items()]),
        **{**KNOBS, **changes},
    )
    rows = [tuple(row.values()) for row in engine.rows(result.table).to_pylist()]
    return sorted(rows), result


def number(*parts: object) -> str:
    return hashlib.md5("|".join(map(str, parts)).encode()).hexdigest()


def reference(log: Log, links: Links, texts: dict[str, str]) -> list[tuple]:
    """The rules, one pair at a time."""
    limit, pool_limit, seed = KNOBS["max_positives"], KNOBS["max_negatives"], KNOBS["seed"]
    clicked: dict[str, dict[str, int]] = defaultdict(dict)
    ignored: dict[str, set[str]] = defaultdict(set)
    for (q, d), clicks in log.items():
        if clicks:
            clicked[q][d] = clicks
        else:
            ignored[q].add(d)
    positives = {q: set(clicked[q]) for q, _ in log}
    for q, other in links:
        positives.setdefault(q, set()).update(clicked[other])

    def allowed(q: str, d: str) -> bool:
        return texts.get(d, d) not in {texts.get(p, p) for p in positives.get(q, ())}

    pool = {
        q: sorted((d for d in ignored[q] if allowed(q, d)), key=lambda d, q=q: number(seed, q, d))[:pool_limit]
        for q in list(ignored)
    }
    lent = {q: sorted(held, key=lambda d, held=held: (-held[d], d))[:limit] for q, held in clicked.items()}

    def negative(q: str, giver: str, p: str) -> str | None:
        free = [d for d in pool.get(giver, ()) if allowed(q, d)]
        return min(free, key=lambda d: number(seed, q, p, d), default=None)

    rows: list[tuple] = []
    for q, documents in lent.items():
        rows += [(q, p, n, "click_one_hop", "", 1.0) for p in documents if (n := negative(q, q, p))]
    for q in {q for q, _ in links}:
        reached: dict[str, tuple] = {}
        for (receiver, giver), strength in links.items():
            for p in lent.get(giver, ()) if receiver == q else ():
                if p not in clicked[q] and (n := negative(q, giver, p)):
                    candidate = (-strength, -clicked[giver][p], giver, p, n)
                    reached[p] = min(reached.get(p, candidate), candidate)
        for _, _, giver, p, n in sorted(reached.values())[:limit]:
            rows.append((q, p, n, "click_multi_hop", giver, KNOBS["multi_hop_weight"]))
    return sorted(rows)


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(seed=st.integers(0, 10_000), queries=st.integers(1, 9), documents=st.integers(2, 9), copies=st.integers(0, 3))
def test_equals_the_reference_and_obeys_the_click_rule(
    engine: Engine, seed: int, queries: int, documents: int, copies: int
) -> None:
    draw = random.Random(seed)
    log: Log = {}
    links: Links = {}
    texts: dict[str, str] = {}
    for part in range(8):  # several logs side by side cost no more than one
        query_ids = [f"{part}/q{i}" for i in range(queries)]
        doc_ids = [f"{part}/d{i}" for i in range(documents)]
        log |= {(q, d): draw.choice([0, 0, 0, 1, 2]) for q in query_ids for d in doc_ids if draw.random() < 0.7}
        links |= {(a, b): draw.randint(1, 3) for a in query_ids for b in query_ids if a != b and draw.random() < 0.3}
        texts |= {draw.choice(doc_ids): f"the same text {part}" for _ in range(copies)}
    rows, result = mined(engine, log, links, texts)
    assert rows == reference(log, links, texts)

    for q, p, n, source, via, _ in rows:
        giver = via if source == "click_multi_hop" else q
        assert log[giver, p] > 0
        assert log[giver, n] == 0, "a hard negative was exposed and not clicked"
        assert source == "click_one_hop" or (q, via) in links
        positives = {d for (other, d), clicks in log.items() if clicks and (other == q or (q, other) in links)}
        assert n not in positives
        assert texts.get(n, n) not in {texts.get(d, d) for d in positives}

    lost = result.dropped["click_one_hop"]
    assert sum(clicks > 0 for clicks in log.values()) == sum(lost.values()) + sum(r[3] == "click_one_hop" for r in rows)


def test_multi_hop_serves_the_other_querys_positive_and_negative(engine: Engine) -> None:
    log = {("q2", "good"): 3, ("q2", "bad"): 0}
    rows, _ = mined(engine, log, {("q1", "q2"): 10}, {})
    assert rows == [
        ("q1", "good", "bad", "click_multi_hop", "q2", 0.25),
        ("q2", "good", "bad", "click_one_hop", "", 1.0),
    ]


def test_a_positive_by_hop_is_never_a_negative(engine: Engine) -> None:
    log = {("q1", "a"): 1, ("q1", "b"): 0, ("q2", "b"): 1, ("q2", "c"): 0}
    alone, _ = mined(engine, log, {}, {})
    assert ("q1", "a", "b", "click_one_hop", "", 1.0) in alone
    linked, result = mined(engine, log, {("q1", "q2"): 1}, {})
    assert not any(row[0] == "q1" and row[2] == "b" for row in linked)
    assert result.refused_negatives["click_one_hop"]["positive_of_the_query"] == 1
    assert result.dropped["click_one_hop"]["no_negative_left"] == 1


def test_a_shortfall_is_counted_and_not_filled(engine: Engine) -> None:
    rows, result = mined(engine, {("q", "a"): 1, ("q", "copy"): 0, ("r", "x"): 0}, {}, {"a": "t", "copy": "t"})
    assert rows == []
    assert result.dropped["click_one_hop"] == {"over_max_positives": 0, "no_negative_left": 1}
    assert result.refused_negatives["click_one_hop"] == {"positive_of_the_query": 0, "text_of_a_positive": 1}


def test_the_choice_is_seeded(engine: Engine) -> None:
    log = {("q", f"p{i}"): 1 for i in range(4)} | {("q", f"n{i}"): 0 for i in range(30)}
    first, again, other = (
        mined(engine, rows, {}, {}, seed=seed, max_positives=4, max_negatives=30)[0]
        for rows, seed in ((log, 1), (dict(reversed(log.items())), 1), (log, 2))
    )
    assert len(first) == 4
    assert first == again != other
