"""python -m bench.ubi_log OUT [INGEST]: the demo's sessions as a log in the schema of User Behavior Insights.

The sessions are SIMULATED: no person searched or clicked. OUT gets corpus.jsonl, and by day
queries/dt=YYYY-MM-DD/ubi_queries.jsonl and events/dt=YYYY-MM-DD/ubi_events.jsonl, for recipes/ubi.yaml.
INGEST holds the demo's tables (data/ingest). Every query gets a first day, so that new ones keep coming, and each of
its sessions a day from then on; one search in ten leaves its hits to the events, as logs of clients alone do.
"""

import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError, guarded
from steps.core.tables import read_table

APPLICATION = "slimtower simulated sessions"
FIRST_DAY = 1_735_689_600  # 2025-01-01 00:00:00 UTC
DAYS, DAY_SECONDS = 10, 86_400
WITHOUT_HITS = 10  # one search in so many
SEED = 7


def write_log(out: Path, ingest: Path, seed: int = SEED) -> dict[str, int]:
    """Write the log of the demo's impressions below `out`; returns the number of searches and events."""
    corpus, impressions = read_table(ingest, "corpus"), read_table(ingest, "impressions")
    if not impressions.num_rows:
        raise UserError(f"{ingest}/impressions.parquet: no sessions; run `make demo`, which simulates some")
    texts = dict(zip(*(read_table(ingest, "queries")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    _write(
        out / "corpus.jsonl",
        (
            {"doc_id": _bare_id(row["doc_id"]), "title": row["title"], "topic": row["topic"], "content": row["content"]}
            for row in corpus.to_pylist()
        ),
    )
    sessions: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in impressions.to_pylist():
        sessions[row["session_id"], row["query_id"]].append(row)

    generator = np.random.default_rng([seed, 1])
    first_day = dict(zip(sorted(texts), generator.integers(DAYS, size=len(texts)).tolist(), strict=True))
    queries: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for at, ((_, query), session_rows) in enumerate(sorted(sessions.items())):
        day = int(generator.integers(first_day[query], DAYS))
        search = _search(at, FIRST_DAY + DAY_SECONDS * day + int(generator.integers(DAY_SECONDS - 60)), generator)
        partition = search["timestamp"][:10]
        session_rows.sort(key=lambda row: row["rank"])
        without_hits = at % WITHOUT_HITS == 0
        hits = [] if without_hits else [_bare_id(row["doc_id"]) for row in session_rows]
        queries[partition].append(search | {"user_query": texts[query], "query_response_hit_ids": hits})
        for row in session_rows:
            if without_hits:
                events[partition].append(_event(search, "impression", row))
            if row["clicked"]:
                events[partition].append(_event(search, "click", row))
    for kind, days in (("queries", queries), ("events", events)):
        for partition, rows in days.items():
            rows.sort(key=lambda row: (row["timestamp"], row["query_id"]))
            _write(out / kind / f"dt={partition}" / f"ubi_{kind}.jsonl", rows)
    return {"searches": sum(map(len, queries.values())), "events": sum(map(len, events.values()))}


def _search(at: int, timestamp: int, generator: np.random.Generator) -> dict[str, Any]:
    return {
        "application": APPLICATION,
        "query_id": str(uuid.UUID(bytes=generator.bytes(16), version=4)),
        "client_id": f"client-{at % 997}",
        "timestamp": datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _event(search: dict[str, Any], action: str, row: dict[str, Any]) -> dict[str, Any]:
    return search | {
        "action_name": action,
        "message_type": action.upper(),
        "event_attributes": {
            "object": {"object_id": _bare_id(row["doc_id"]), "object_id_field": "doc_id"},
            "position": {"ordinal": row["rank"]},
        },
    }


def _bare_id(doc_id: str) -> str:
    """The id without its data set's name."""
    return doc_id.partition("/")[2]


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise UserError("bench.ubi_log: give a folder to write, such as `python -m bench.ubi_log /tmp/ubi`")
    out = Path(sys.argv[1])
    counts = write_log(out, Path(sys.argv[2] if len(sys.argv) > 2 else "data/ingest"))
    print(f"wrote {out}: {counts['searches']} SIMULATED searches with {counts['events']} events over {DAYS} days")


if __name__ == "__main__":
    guarded(main)
