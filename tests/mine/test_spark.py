"""The same rows from both engines."""

import random
import shutil
from pathlib import Path

import pytest
from mine_logs import Row, document, impression, mine, mine_relevance, query, write_log

from steps.core.tables import read_table
from steps.mine import from_relevance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or later"),
    pytest.mark.timeout(1200),
]


def log_of_40k_rows(folder: Path) -> Path:
    """4,000 queries of two to six words, each shown five documents in two sessions; and scores of 300 queries."""
    draw = random.Random(11)
    vocabulary = [f"w{i}" for i in range(900)]
    weights = [1 / (i + 1) for i in range(900)]
    queries, impressions = [], []
    documents = [document(f"d/{i}", f"Content {draw.randrange(4500)} of words {i % 40}.", f"t{i}") for i in range(5000)]
    for i in range(4_000):
        words = draw.choices(vocabulary, weights, k=draw.randint(2, 6))
        split = "test" if i % 100 == 0 else "dev" if i % 100 == 1 else "train"
        suffix = "" if split == "train" else f" {split}{i}"
        queries.append(query(f"d/q{i}", " ".join(words) + suffix, split))
        pool = [f"d/{(int(words[0][1:]) * 37 + n) % 5000}" for n in draw.sample(range(30), 8)]
        for session in range(2):
            for rank, doc_id in enumerate(draw.sample(pool, 5), start=1):
                at = 10 * (split == "test") + session
                impressions.append(impression(f"d/q{i}", doc_id, draw.random() < 0.4 / rank, at, rank))
                impressions[-1]["session_id"] = f"s{i}-{session}"
    relevance: list[Row] = [
        {"query_id": f"d/q{i}", "doc_id": f"d/{n}", "score": draw.random()}
        for i in range(2, 4_000, 33)
        for n in draw.sample(range(5000), 12)
    ]
    assert len(impressions) == 40_000
    return write_log(folder, queries, documents, impressions, relevance)


def test_duckdb_equals_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_relevance, "RELEVANCE_TOP_TERMS", 2)
    ingest = log_of_40k_rows(tmp_path / "ingest")
    outputs = []
    for engine in ("duckdb", "spark"):
        knobs = {
            "engine": engine, "spark_master": "local[2]", "memory_limit": "2GB", "max_associations": 20,
            "debias": {"method": "ipw"},
        }  # fmt: skip
        clicks = mine(ingest, tmp_path / f"{engine}-click", **knobs)
        outputs.append(mine_relevance(ingest, clicks, tmp_path / f"{engine}-relevance", **knobs))
    duckdb, spark = outputs
    triplets = read_table(duckdb, "triplets")
    assert triplets.num_rows > 4_000
    assert len(set(triplets["source"].to_pylist())) == 4
    for name in ("associations", "triplets"):
        assert read_table(duckdb, name).equals(read_table(spark, name)), name
    assert (duckdb / "report.json").read_bytes() == (spark / "report.json").read_bytes()
