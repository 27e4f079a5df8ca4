"""python -m bench.mining [QUERIES ...]: time and memory of the stage `mine` on made-up logs; `make bench NAME=mining`.

For each size (100,000, 1,000,000 and 10,000,000 queries unless given) a log is written, then mined by the cell `click`
in a process of its own. At 20,000 queries the associations are compared with Algorithm 1 done pair by pair, in plain
Python, as the paper prints it, and vectorised with numpy; at 100,000 with the latter. Writes bench/results/mining.json.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from itertools import pairwise as pairwise_sizes
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import peak_gib, recording, write_record
from bench.zipf_log import write_log
from pipeline.params import load_params
from steps.core.tables import SCHEMAS, write_table
from steps.mine.association import MIN_TERMS, click_associations
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.engine import Engine, open_engine
from steps.mine.from_clicks import CLICK_TOP_TERMS, judgements
from steps.mine.params import MineParams
from steps.mine.planner import importances
from steps.mine.run import run
from steps.tracking.runs import NullRun

ABSENT = -1


def as_printed(
    rows: Mapping[int, Mapping[int, float]],
    givers: Collection[int],
    *,
    threshold: float,
    top_terms: int,
    min_terms: int,
) -> set[tuple[int, int]]:
    """All associations (receiver, giver) of importances by query and term: every pair looked at, in plain Python."""
    queries = {query: terms for query, terms in rows.items() if len(terms) >= min_terms}
    lenders = [(query, terms) for query, terms in queries.items() if query in givers]
    associations = set()
    for receiver, terms in queries.items():
        top = sorted(terms, key=lambda term: (-terms[term], term))[:top_terms]
        for giver, giver_terms in lenders:
            if all(giver_terms.get(term, 0.0) > threshold for term in top) and giver != receiver:
                associations.add((receiver, giver))
    return associations


def pairwise(
    terms: np.ndarray, importances: np.ndarray, givers: np.ndarray, *, threshold: float, top_terms: int, min_terms: int
) -> np.ndarray:
    """All associations of one data set's queries, without a cap: int64 (found, 2), sorted rows (receiver, giver).

    Args: terms: int64 (queries, width), keys of each query's distinct terms, filled up with -1; importances: float64
    (queries, width); givers: bool (queries,), the queries that may lend. Of equally important terms, the lesser key is
    the more important. Queries of fewer than `min_terms` terms take no part. Vectorised over the givers, no index.
    """
    present = terms != ABSENT
    numbers = np.full(terms.shape, ABSENT, np.int32)  # half the memory to scan
    numbers[present] = np.unique(terms[present], return_inverse=True)[1]
    takes_part = present.sum(axis=1) >= min_terms
    lenders = np.flatnonzero(givers & takes_part)
    strong = np.where(present & (importances > threshold), numbers, ABSENT)[lenders].T.copy()
    order = np.lexsort((numbers, -np.where(present, importances, -np.inf)))
    top = np.take_along_axis(numbers, order[:, :top_terms], axis=1)

    pairs = []
    for receiver in np.flatnonzero(takes_part):
        first, *rest = top[receiver][top[receiver] != ABSENT].tolist()
        columns = np.flatnonzero((strong == first).any(axis=0))
        for term in rest:
            columns = columns[(strong[:, columns] == term).any(axis=0)]
        from_whom = lenders[columns]
        from_whom = from_whom[from_whom != receiver]
        pairs.append(np.column_stack([np.full(len(from_whom), receiver), from_whom]))
    return np.concatenate(pairs) if pairs else np.empty((0, 2), np.int64)


SIZES = (100_000, 1_000_000, 10_000_000)
COMPARED = (20_000, 100_000)
CAP = 200
MEMORY = "4GB"
SEED = 7
RESULT = Path("bench/results/mining.json")


def bench_params() -> MineParams:
    """The defaults, with the cap and the memory that the bench states."""
    return load_params().mine.model_copy(update={"max_associations": CAP, "memory_limit": MEMORY})


def mine_log(queries: int) -> dict[str, Any]:
    """Write a log and mine it in a process of its own: seconds, peak resident memory in GiB, what was found."""
    with tempfile.TemporaryDirectory(prefix="bench-mine.", dir=".cache") as name:
        folder = Path(name)
        started = time.perf_counter()
        write_log(folder / "ingest", queries, SEED)
        for empty in ("relevance", "term_scores", "qrels", "given_triplets"):
            write_table(folder / "ingest", empty, SCHEMAS[empty].empty_table())
        written = time.perf_counter() - started
        command = [sys.executable, "-m", "bench.mining", "--one", str(folder)]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(f"{queries:>12,} queries: {result['seconds']:.0f} s, {result['peak_rss_gib']:.2f} GiB", file=sys.stderr)
    return {"queries": queries, "write_log_seconds": round(written, 1), **result}


def mine_one(folder: Path) -> dict[str, Any]:
    """Mine folder/ingest in this process."""
    started = time.perf_counter()
    run(
        signal="click",
        ingest=folder / "ingest",
        input_folders=[],
        earlier=None,
        output=folder / "mine",
        params=bench_params(),
        run=NullRun(),
    )
    seconds = time.perf_counter() - started
    report = json.loads((folder / "mine" / "report.json").read_text())
    return {
        "seconds": round(seconds, 1),
        "peak_rss_gib": round(peak_gib(), 3),
        "impressions": report["impressions"]["read"],
        "triplets": sum(report["rows"].values()),
        "associations": {name: report["associations"][name] for name in ("found", "kept", "per_query", "cut_share")},
    }


def compare_with_pairwise(queries: int, *, printed: bool) -> dict[str, Any]:
    """Seconds of the association step (best of three) and of the pairwise algorithms on one log."""
    params = bench_params()
    with tempfile.TemporaryDirectory(prefix="bench-mine.", dir=".cache") as name:
        folder = Path(name)
        write_log(folder / "ingest", queries, SEED)
        with open_engine(params, folder) as engine:
            rows, givers, planned, giving = _inputs(engine, folder / "ingest", params)
            knobs = {"threshold": params.click_threshold, "top_terms": CLICK_TOP_TERMS}
            knobs["min_terms"] = MIN_TERMS
            ours = min(_timed(lambda: _associations(engine, planned, giving, queries, knobs)) for _ in range(3))
            pairs = _associations(engine, planned, giving, queries, knobs)
    times: dict[str, float] = {}
    keys, terms, shares = _padded(rows)
    lend = np.isin(keys, sorted(givers))
    started = time.perf_counter()
    numbers = pairwise(terms, shares, lend, **knobs)
    times["vectorised"] = time.perf_counter() - started
    outputs = [set(zip(keys[numbers[:, 0]].tolist(), keys[numbers[:, 1]].tolist(), strict=True))]
    if printed:
        started = time.perf_counter()
        outputs.append(as_printed(rows, givers, **knobs))
        times["as_printed"] = time.perf_counter() - started
    if any(output != pairs for output in outputs):
        raise SystemExit(
            f"outputs differ: {len(pairs)} associations here, {[len(output) for output in outputs]} pairwise"
        )
    slower = {
        name: {"seconds": round(value, 2), "times_slower": round(value / ours, 1)} for name, value in times.items()
    }
    print(f"{queries:>12,} queries: association {ours:.2f} s, {times}", file=sys.stderr)
    return {"queries": queries, "associations": len(pairs), "seconds": round(ours, 3), "equal_output": True} | slower


def _inputs(engine: Engine, ingest: Path, params: MineParams) -> tuple[dict[int, dict[int, float]], set[int], Any, Any]:
    """Importances by query and the queries with clicks, in memory and as tables."""
    tables = {name: engine.scan(ingest / f"{name}.parquet") for name in ("queries", "corpus", "impressions")}
    queries = keyed_queries(engine, tables["queries"])
    documents = keyed_documents(engine, tables["corpus"])
    log = judgements(engine, tables["impressions"], queries, documents, params.debias)
    giving = engine.keep(log.table.filter(log.table.clicks > 0).select("query").distinct())
    planned = importances(engine, queries.filter(queries.split == "train"), params, queries)
    rows: dict[int, dict[int, float]] = {}
    for row in engine.rows(planned.select("query", "term", "importance")).to_pylist():
        rows.setdefault(row["query"], {})[row["term"]] = row["importance"]
    return rows, set(engine.rows(giving)["query"].to_pylist()), planned, giving


def _associations(engine: Engine, planned: Any, giving: Any, cap: int, knobs: dict[str, Any]) -> set[tuple[int, int]]:
    strongest = engine.rows(click_associations(engine, planned, giving, cap=cap, **knobs).strongest)
    return set(zip(strongest["query"].to_pylist(), strongest["other_query"].to_pylist(), strict=True))


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _padded(rows: dict[int, dict[int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries (n,), terms (n, width) filled up with -1, importances (n, width)."""
    width = max(map(len, rows.values()))
    keys = np.array(list(rows), dtype=np.int64)
    terms = np.array([[*row, *[-1] * (width - len(row))] for row in rows.values()], dtype=np.int64)
    shares = np.array([[*row.values(), *[0.0] * (width - len(row))] for row in rows.values()])
    return keys, terms, shares


def growth(results: list[dict[str, Any]]) -> dict[str, float]:
    """Exponent b of seconds ~ queries ** b between neighbouring sizes."""
    return {
        f"{small['queries']:,} to {large['queries']:,}": round(
            float(np.log(large["seconds"] / small["seconds"]) / np.log(large["queries"] / small["queries"])), 3
        )
        for small, large in pairwise_sizes(results)
    }


def main() -> None:
    """Run it all, or one log in this process (`--one FOLDER`)."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(mine_one(Path(sys.argv[2]))))
        return
    Path(".cache").mkdir(exist_ok=True)
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    compared = [compare_with_pairwise(size, printed=size == COMPARED[0]) for size in COMPARED]
    results = [mine_log(size) for size in sizes]
    document = {
        "seed": SEED,
        "memory_limit": MEMORY,
        "max_associations": CAP,
        "sizes": results,
        "growth_exponent": growth(results),
        "against_pairwise": compared,
    }
    write_record(RESULT, document)
    largest = results[-1]
    for label, value, limit in (
        ("seconds at the largest size", largest["seconds"], 15 * 60),
        ("GiB resident at the largest size", largest["peak_rss_gib"], 8),
        ("largest growth exponent", max(document["growth_exponent"].values(), default=0.0), 1.2),
        ("1 / speed-up over Algorithm 1 as printed", 1 / compared[0]["as_printed"]["times_slower"], 0.01),
    ):
        print(f"{'OK' if value <= limit else 'FAIL':<5}{label}: {value:g} (at most {limit:g})")


if __name__ == "__main__":
    recording(main)
