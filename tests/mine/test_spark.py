"""The same rows from both engines."""

import random
import shutil
from pathlib import Path

import pytest
from mine_logs import mine, mine_relevance, random_log, write_log
from rows import row

from steps.core.tables import read_table
from steps.mine import from_clicks, from_relevance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or later"),
    pytest.mark.timeout(1200),
]


def test_duckdb_equals_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_relevance, "RELEVANCE_TOP_TERMS", 2)
    monkeypatch.setattr(from_clicks, "LAST_RANK", 5)
    queries, documents, impressions = random_log(11, datasets=100, queries=60)
    draw = random.Random(11)
    relevance = [
        row("relevance", query["query_id"], f"{query['dataset']}/doc{number}", draw.random())
        for query in queries[::33]
        for number in draw.sample(range(10), 8)
    ]
    ingest = write_log(tmp_path / "ingest", queries, documents, impressions, relevance)
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
