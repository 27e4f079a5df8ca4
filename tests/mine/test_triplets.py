"""Triplets against a plain Python reference, and the guards of the hard negatives."""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mine_logs import PARAMS, engine_in, engine_table

from steps.core.texts import fold
from steps.mine import triplets
from steps.mine.catalogue import NEAR_DUPLICATE, SEED, SKETCH, _told_apart, key, sketches
from steps.mine.engine import Engine
from steps.mine.params import MineParams
from steps.mine.triplets import Signal, Triplets, mine_triplets, tell_unused

pytestmark = pytest.mark.medium

POSITIVES = {name: pa.int64() for name in ("query", "doc", "text_key", "weight", "click_weight")}
CANDIDATES = {name: pa.int64() for name in ("query", "doc", "text_key")}
GUARDED = {name: pa.int64() for name in ("query", "text_key")}
ASSOCIATIONS = {name: pa.int64() for name in ("query", "other_query", "strength")}
DOCUMENTS = {"doc": pa.int64()} | {name: pa.int32() for name in SKETCH}
KNOBS = MineParams(**PARAMS | {"max_positives": 2, "multi_hop_weight": 0.25})
MAX_NEGATIVES = 3
PRIME = 2**31 - 1

Log = dict[tuple[str, str], int]  # (query, document) shown -> clicks
Links = dict[tuple[str, str], int]  # (query, other query) -> strength


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("triplets")
    with pytest.MonkeyPatch.context() as patch, engine_in(folder) as opened:
        patch.setattr(triplets, "MAX_NEGATIVES", MAX_NEGATIVES)
        yield opened


def mined(
    engine: Engine,
    log: Log,
    links: Links,
    texts: dict[str, str],
    guarded: Collection[tuple[str, str]] = (),
    **changes: Any,
) -> tuple[list, Triplets]:
    """Triplets by name; `texts` gives documents of equal text, all others are unlike each other."""
    name_of = {key(name): name for pair in [*log, *links, *guarded] for name in pair}
    text = {d: key(texts.get(d, d)) for _, d in [*log, *guarded]}
    positives = [(key(q), key(d), text[d], n, 1) for (q, d), n in log.items() if n]
    candidates = [(key(q), key(d), text[d]) for (q, d), n in log.items() if not n]
    documents = [(key(d), *(key(f"{texts.get(d, d)} {n}") % 2**30 for n in range(len(SKETCH)))) for d in text]
    result = mine_triplets(
        engine,
        Signal("click", engine_table(engine, POSITIVES, positives), engine_table(engine, CANDIDATES, candidates)),
        engine_table(
            engine, ASSOCIATIONS, [(key(q), key(source), strength) for (q, source), strength in links.items()]
        ),
        engine_table(engine, GUARDED, [(key(q), text[d]) for q, d in guarded]),
        engine_table(engine, DOCUMENTS, documents),
        KNOBS.model_copy(update=changes),
    )
    rows = [
        (
            *(name_of[row[column]] for column in ("query", "positive", "negative")),
            row["source"],
            "" if row["via"] is None else name_of[row["via"]],
            row["weight"],
        )
        for row in engine.rows(result.table).to_pylist()
    ]
    return sorted(rows), result


def number(seed: int, first: str, second: str) -> int:
    """The pseudo-random number of two ids, by hand."""
    start = key(f"mixed {seed}")
    factor_1, factor_2, factor_3 = (start // 2**shift % PRIME for shift in (0, 16, 32))
    linear = (key(first) % PRIME * factor_1 + key(second) % PRIME * factor_2) % PRIME
    return (linear * linear % PRIME * factor_3 + linear) % PRIME


def reference(log: Log, links: Links, texts: dict[str, str], count: int) -> list[tuple]:
    """The rules, one pair at a time."""
    limit = KNOBS.max_positives
    clicked: dict[str, dict[str, int]] = defaultdict(dict)
    ignored: dict[str, set[str]] = defaultdict(set)
    for (q, d), clicks in log.items():
        if clicks:
            clicked[q][d] = clicks
        else:
            ignored[q].add(d)
    positives = {q: set(clicked[q]) for q, _ in log}
    for q, source in links:
        positives.setdefault(q, set()).update(clicked[source])

    def allowed(q: str, d: str) -> bool:
        return texts.get(d, d) not in {texts.get(p, p) for p in positives.get(q, ())}

    pool = {
        q: sorted((d for d in ignored[q] if allowed(q, d)), key=lambda d, q=q: (number(SEED, q, d), key(d)))[
            :MAX_NEGATIVES
        ]
        for q in list(ignored)
    }
    best = {q: sorted(held, key=lambda d, held=held: (-held[d], key(d)))[:limit] for q, held in clicked.items()}

    def negatives(q: str, source_query: str, p: str) -> list[str]:
        slots = pool.get(source_query, [])
        start = number(SEED, q, p) % len(slots) if slots else 0
        return [d for d in slots[start:] + slots[:start] if allowed(q, d)][:count]

    rows: list[tuple] = []
    for q, documents in best.items():
        rows += [(q, p, n, "click_one_hop", "", 1.0) for p in documents for n in negatives(q, q, p)]
    for q in {q for q, _ in links}:
        reached: dict[str, tuple] = {}
        for (receiver, source_query), strength in links.items():
            for p in best.get(source_query, ()) if receiver == q and pool.get(source_query) else ():
                if p not in clicked[q]:
                    candidate = (-strength, -clicked[source_query][p], key(source_query), key(p), source_query, p)
                    reached[p] = min(reached.get(p, candidate), candidate)
        for *_, source_query, p in sorted(reached.values())[:limit]:
            for n in negatives(q, source_query, p):
                rows.append((q, p, n, "click_multi_hop", source_query, KNOBS.multi_hop_weight))
    return sorted(rows)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(
    seed=st.integers(0, 10_000),
    queries=st.integers(1, 9),
    documents=st.integers(2, 9),
    copies=st.integers(0, 3),
    count=st.sampled_from([1, 2]),
)
def test_equals_the_reference_and_counts_what_is_lost(
    engine: Engine, seed: int, queries: int, documents: int, copies: int, count: int
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
    rows, result = mined(engine, log, links, texts, negatives_per_positive=count)
    assert rows == reference(log, links, texts, count)

    lost = result.dropped["click_one_hop"]
    assert sum(clicks > 0 for clicks in log.values()) == sum(lost.values()) + len(
        {(q, p) for q, p, _, source, *_ in rows if source == "click_one_hop"}
    )


def test_a_positive_by_hop_is_never_a_negative(engine: Engine) -> None:
    log = {("q1", "a"): 1, ("q1", "b"): 0, ("q2", "b"): 1, ("q2", "c"): 0}
    alone, _ = mined(engine, log, {}, {})
    assert ("q1", "a", "b", "click_one_hop", "", 1.0) in alone
    assert not any(row[2] == "b" for row in mined(engine, log, {}, {}, guarded=[("q1", "b")])[0])
    linked, result = mined(engine, log, {("q1", "q2"): 1}, {})
    assert not any(row[0] == "q1" and row[2] == "b" for row in linked)
    assert result.refused_negatives["click_one_hop"]["candidate_is_a_positive"] == 1
    assert result.dropped["click_one_hop"]["no_negative_left"] == 1


def test_a_near_duplicate_of_the_positive_is_refused_and_another_candidate_drawn(engine: Engine) -> None:
    text = "return the cumulative sum of the elements along a given axis as a new array of the same shape and type"
    alike, unlike = sketches([text, text + " always"]), sketches(["sort the rows of a frame by one of its columns"])
    documents = [(1, *alike[0].tolist()), (2, *alike[1].tolist()), (3, *unlike[0].tolist())]
    query_keys = range(10, 22)  # each draws a number of its own
    result = mine_triplets(
        engine,
        Signal(
            "click",
            engine_table(engine, POSITIVES, [(query, 1, 1, 1, 1) for query in query_keys]),
            engine_table(engine, CANDIDATES, [(query, doc, doc) for query in query_keys for doc in (2, 3)]),
        ),
        engine_table(engine, ASSOCIATIONS, []),
        engine_table(engine, GUARDED, []),
        engine_table(engine, DOCUMENTS, documents),
        KNOBS,
    )
    assert [row["negative"] for row in engine.rows(result.table).to_pylist()] == [3] * len(query_keys)


def test_a_cap_of_zero_takes_all_positives_and_a_small_one_is_told(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    log = {("q", f"p{n}"): 1 for n in range(5)} | {("r", f"p{n}"): 1 for n in range(4, 7)}
    log |= {("q", "n"): 0, ("r", "m"): 0}
    links = {("r", "q"): 1}

    def positives_by_hop(max_positives: int) -> list[tuple[int, int]]:
        """By hop: how many positives are mined."""
        rows, result = mined(engine, log, links, {}, max_positives=max_positives)
        tell_unused(result, "click")
        return sorted(Counter(row[3] for row in rows).items())

    assert positives_by_hop(0) == [("click_multi_hop", 4), ("click_one_hop", 8)]
    assert positives_by_hop(4) == [("click_multi_hop", 3), ("click_one_hop", 7)]
    assert capsys.readouterr().err == ""
    assert positives_by_hop(1) == [("click_multi_hop", 1), ("click_one_hop", 2)]
    assert "3 of 9 positives" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "word", "replacement"),
    [
        (
            "本文介绍如何在家中更换自行车轮胎，首先取下车轮并放掉内胎里的空气，然后用撬胎棒取下外胎，最后装上新的内胎",
            "新的",
            "全新的",
        ),
        ("บทความนี้อธิบายวิธีเปลี่ยนยางจักรยานที่บ้านโดยถอดล้อออกก่อนแล้วปล่อยลมออกจากยางในจากนั้นใช้เหล็กงัดยางนอกออก", "ก่อน", "เสียก่อน"),
    ],
    ids=["zh", "th"],
)
def test_scripts_without_spaces_have_copies_and_near_copies_too(text: str, word: str, replacement: str) -> None:
    copies = [_told_apart(fold(text), title, "") for title in ("one title", "another")]
    assert copies[0] == copies[1]
    edited = sketches([copies[0], _told_apart(fold(text.replace(word, replacement)), "one title", "")])
    assert (edited[0] == edited[1]).sum() >= NEAR_DUPLICATE
    backwards = sketches([copies[0], fold(text[::-1])])
    assert (backwards[0] == backwards[1]).sum() < NEAR_DUPLICATE


def test_sketches_tell_near_copies_from_other_texts() -> None:
    """One word changed in the middle of twelve leaves nine of fifteen shingles; other texts share next to none."""
    draw = random.Random(1)
    words = [f"word{n}" for n in range(3000)]
    texts = [draw.sample(words, 12) for _ in range(300)]
    edited = [[*text[:6], "edited", *text[7:]] for text in texts]
    first, second = (sketches([" ".join(text) for text in words_of_texts]) for words_of_texts in (texts, edited))
    assert ((first == second).sum(axis=1) >= NEAR_DUPLICATE).mean() > 0.85
    assert ((first == np.roll(second, 1, axis=0)).sum(axis=1) >= NEAR_DUPLICATE).mean() == 0
