"""python -m bench.ingest [IMPRESSIONS ...]: time and memory of the stage `ingest` on made-up click logs, beside pandas.

For each size (100,000, 1 and 10 million impressions unless given) a log and its corpus are written, ten results a
search, then read by the stage and by pandas, each in a process of its own. The lines in pandas do what every log
needs: they leave out bad rows, repeated rows and robots, join queries that fold alike, split them by time and seed, and
take clicks of held-out queries for judgements. Both have to write equally many rows. Writes bench/results/ingest.json;
exits 3 if they differ.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.machine import peak_gib, recording, write_record
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.texts import fold
from steps.ingest.params import IngestParams
from steps.ingest.run import run
from steps.ingest.source import seeded_order
from steps.ingest.times import iso_time
from steps.tracking.runs import NullRun

RESULT = Path("bench/results/ingest.json")
SIZES = (100_000, 1_000_000, 10_000_000)
SHOWN = 10  # documents a search
FIRST, DAYS = 1_767_225_600, 30  # 2026-01-01
TEST_FROM = "2026-01-25"
DEV_SHARE, SEED = 0.1, 3
COLUMNS = ("query", "doc_id", "rank", "clicked", "timestamp", "session_id")
_SEARCHES = 100_000  # written at a time


def write_log(folder: Path, impressions: int, seed: int = 1) -> None:
    """A corpus of a hundredth as many documents, and a log of four searches a query on average, words by Zipf's law."""
    draw = np.random.default_rng(seed)
    searches, documents, distinct = impressions // SHOWN, impressions // 100, impressions // 40
    words = np.array([f"w{number:x}" for number in range(20_000)])
    lengths = draw.integers(2, 7, distinct)
    share = np.cumsum(1 / np.arange(1, len(words) + 1))
    drawn = words[np.searchsorted(share, draw.random(int(lengths.sum())) * share[-1])]
    texts = pa.array([" ".join(text) for text in np.split(drawn, np.cumsum(lengths)[:-1])])
    doc_ids = pa.array([f"d{number}" for number in range(documents)])
    contents = pa.array([f"words of document {number}" for number in range(documents)])
    pq.write_table(pa.table({"doc_id": doc_ids, "content": contents}), folder / "corpus.parquet")
    query = (distinct * draw.random(searches) ** 2).astype(np.int64)
    times = FIRST + np.sort(draw.integers(0, DAYS * 86_400, searches))
    (folder / "log").mkdir()
    for first in range(0, searches, _SEARCHES):
        of_rows = np.repeat(np.arange(first, min(first + _SEARCHES, searches)), SHOWN)
        rank = np.tile(np.arange(1, SHOWN + 1), len(of_rows) // SHOWN)
        table = {
            "query": texts.take(pa.array(query[of_rows])),
            "doc_id": doc_ids.take(pa.array((query[of_rows] * 7919 + rank * 31) % documents)),
            "rank": rank,
            "clicked": draw.random(len(of_rows)) < 0.3 / rank,
            "timestamp": times[of_rows],
            "session_id": pa.array([f"s{number}" for number in of_rows.tolist()]),
        }
        pq.write_table(pa.table(table), folder / f"log/{first:09}.parquet")


def params_of(folder: Path) -> IngestParams:
    """What reads the log in this folder."""
    source = {
        "name": "log",
        "kind": "click_log",
        "path": str(folder / "log"),
        "columns": {name: name for name in COLUMNS},
        "corpus": str(folder / "corpus.parquet"),
        "test_from": TEST_FROM,
        "validation_fraction": DEV_SHARE,
    }
    values = {"seed": SEED, "sources": [source], "since": "", "until": "", "unlabelled_queries": ""}
    return IngestParams.model_validate(values | {"document": "{title}. {content}", "max_reject_ratio": 0.01})


def by_stage(folder: Path) -> dict[str, int]:
    """Rows of the tables that the stage writes."""
    run(output=folder / "stage", params=params_of(folder), run=NullRun())
    dataset = read_json(folder / "stage/report.json")["datasets"]["log"]
    sizes = {name: pq.read_metadata(folder / f"stage/{name}.parquet").num_rows for name in ("queries", "qrels")}
    return sizes | {"impressions": dataset["sessions"]["impressions"], "clicks": dataset["sessions"]["clicks"]}


def by_pandas(folder: Path) -> dict[str, int]:
    """Rows of the same tables, by pandas."""
    source = params_of(folder).sources[0]
    corpus = pd.read_parquet(folder / "corpus.parquet")
    log = pd.read_parquet(folder / "log", columns=list(COLUMNS))
    log = log[log.notna().all(axis=1) & log.doc_id.isin(corpus.doc_id) & (log["rank"] >= 1) & (log.timestamp >= 0)]
    texts = log["query"].unique()
    log["text"] = log["query"].map(dict(zip(texts, map(fold, texts), strict=True)))
    log = log[log.text != ""].drop_duplicates(["session_id", "text", "doc_id", "rank", "clicked", "timestamp"])
    log = log[log.groupby("session_id").doc_id.transform("size") <= source.max_session_impressions]
    first = log.groupby("text").timestamp.min()
    cut = iso_time(TEST_FROM)
    order = seeded_order(first.index[first < cut], SEED, "dev of log")
    split = pd.Series("train", index=first.index)
    split[first >= cut] = "test"
    split[order[: round(DEV_SHARE * len(order))]] = "dev"
    log["split"] = log.text.map(split)
    late = (log.timestamp >= cut) & (log.split != "test")
    judged = log[log.clicked & ~late & (log.split != "train")].drop_duplicates(["text", "doc_id"])
    used = log[~late & ((log.split == "train") | log.text.isin(judged.text))]
    queries = split[(split == "train") | split.index.isin(judged.text)]
    (folder / "pandas").mkdir(exist_ok=True)
    for name, table in {"impressions": used, "qrels": judged, "queries": queries.to_frame(), "corpus": corpus}.items():
        table.to_parquet(folder / f"pandas/{name}.parquet")
    return {"queries": len(queries), "qrels": len(judged), "impressions": len(used), "clicks": int(used.clicked.sum())}


READERS = {"stage": by_stage, "pandas": by_pandas}


def measured(reader: str, folder: Path) -> dict[str, Any]:
    """Seconds, peak memory in GiB and rows of a reader, in a process of its own."""
    command = [sys.executable, "-m", "bench.ingest", "--reader", reader, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def exponents(reader: str, lines: list[dict[str, Any]]) -> list[float]:
    """Of the power of the impressions with which a reader's seconds grow, between two sizes each."""
    logs = [(np.log(line[reader]["seconds"]), np.log(line["impressions"])) for line in lines]
    return [float((after[0] - before[0]) / (after[1] - before[1])) for before, after in pairwise(logs)]


def main() -> None:
    if sys.argv[1:2] == ["--reader"]:
        started = time.perf_counter()
        rows = READERS[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps({"seconds": time.perf_counter() - started, "peak_gib": peak_gib(), "rows": rows}))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("impressions", nargs="*", type=int, default=SIZES)
    Path(".cache").mkdir(exist_ok=True)
    lines = []
    for impressions in parser.parse_args().impressions:
        with tempfile.TemporaryDirectory(prefix="bench-ingest.", dir=".cache") as name:
            write_log(Path(name), impressions)
            line = {"impressions": impressions} | {reader: measured(reader, Path(name)) for reader in READERS}
        if line["stage"]["rows"] != line["pandas"]["rows"]:
            raise UserError(f"bench.ingest: of {impressions:,} impressions the two make different tables: {line}")
        lines.append(line)
        print(f"{impressions:,} impressions: {line}", file=sys.stderr)
    write_record(RESULT, {"sizes": lines, "exponents": {reader: exponents(reader, lines) for reader in READERS}})


if __name__ == "__main__":
    recording(main)
