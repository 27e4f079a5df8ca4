"""Which impressions of a search log count, and what became of its searches and clicks: each is counted once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.ingest.coded_columns import codes, mixed
from steps.ingest.source import LogSource
from steps.ingest.source_data import MAX_QUERY_IMPRESSIONS

REPEATED = "repeated"
OF_LONG_SESSIONS, OF_FREQUENT_QUERIES = "of_long_sessions", "of_frequent_queries"
# Fates of an impression, and of a search the first that one of its impressions has.
USED, WITHOUT_CLICK, LATE, OF_ROBOTS = range(4)
_REASONS = {
    "of_robots": "of robots",
    "after_test_from": "after test_from of a query first asked before it",
    "query_without_click": "of a dev or test query without a click",
    "nothing_shown": "that showed nothing known",
    "outside_window": "outside the window",
    "unusable": "unusable",
    "of_another_evaluation": "of a query that another data set judges",
}
_OF_FATE = {WITHOUT_CLICK: "query_without_click", LATE: "after_test_from", OF_ROBOTS: "of_robots"}


def without_repeats(log: pa.Table) -> np.ndarray:
    """Which impressions count, `(impressions,)`: of those equal in every column the first.

    For a log with sessions of its own: there, what is equal to the second is one impression that was delivered again.
    """
    columns = [
        codes(column) if pa.types.is_dictionary(column.type) else pc.cast(column, pa.int64()).to_numpy()
        for column in log.columns
    ]
    keys = np.zeros(log.num_rows, dtype=np.uint64)
    for column in columns:
        keys = mixed(keys ^ column.astype(np.int64).view(np.uint64))
    order = np.argsort(keys, kind="stable")
    again = keys[order[1:]] == keys[order[:-1]]
    for column in columns:
        again &= column[order[1:]] == column[order[:-1]]
    is_first = np.ones(log.num_rows, dtype=bool)
    is_first[order[1:][again]] = False
    return is_first


def without_robots(
    log: pa.Table, source: LogSource, seed: int, visits: np.ndarray | None
) -> tuple[np.ndarray, dict[str, int]]:
    """Which impressions of a log count, `(impressions,)`, and how many do not, by reason; no reason without any.

    A visit of more than `max_session_impressions` counts for nothing; `visits` are numbers from 0, `(impressions,)`,
    None where a log has no sessions of its own: what all people asked at one time is nobody's. Of a query's other
    impressions, MAX_QUERY_IMPRESSIONS drawn by seed count, so that shares of clicks stay what they are.
    """
    is_kept = np.ones(log.num_rows, dtype=bool)
    if visits is not None:
        is_kept = (np.bincount(visits) <= source.max_session_impressions)[visits]
    counts = {OF_LONG_SESSIONS: int((~is_kept).sum())}
    query = log["query"].to_numpy()
    frequent = np.bincount(query[is_kept]) > MAX_QUERY_IMPRESSIONS
    rows = np.flatnonzero(is_kept)
    rows = rows[frequent[query[rows]]]
    rows = rows[np.argsort(query[rows], kind="stable")]
    for of_one in np.split(rows, np.flatnonzero(np.diff(query[rows])) + 1) if len(rows) else ():
        shuffled = np.random.default_rng([seed, query[of_one[0]]]).permutation(of_one)
        is_kept[shuffled[MAX_QUERY_IMPRESSIONS:]] = False
    counts[OF_FREQUENT_QUERIES] = int((~is_kept).sum()) - counts[OF_LONG_SESSIONS]
    return is_kept, {reason: count for reason, count in counts.items() if count}


def searches_by_fate(log: pa.Table, fates: np.ndarray) -> dict[str, Any]:
    """Searches and clicks of a log that are used, and those that are left out by reason; `fates` `(impressions,)`."""
    searches, clicked = search_numbers(log["session"], log["query"]), log["clicked"].to_numpy()
    fate_of = np.full(int(searches.max(initial=-1)) + 1, OF_ROBOTS)
    np.minimum.at(fate_of, searches, fates)
    counts = np.bincount(fate_of, minlength=OF_ROBOTS + 1).tolist()
    clicks = np.bincount(fates[clicked], minlength=OF_ROBOTS + 1).tolist()
    left_out = {reason: [counts[fate], clicks[fate]] for fate, reason in _OF_FATE.items()}
    return {"used": [counts[USED], clicks[USED]], "left_out": left_out}


def search_numbers(sessions: pa.ChunkedArray, queries: pa.ChunkedArray) -> np.ndarray:
    """A number from 0 on of each impression's search, which is one query in one session: `(impressions,)`."""
    ids = codes(queries) if pa.types.is_dictionary(queries.type) else queries.to_numpy()
    pairs = codes(sessions).astype(np.int64) * (int(ids.max(initial=0)) + 1) + ids
    return np.unique(pairs, return_inverse=True)[1].reshape(-1)


def account(name: str, entry: Mapping[str, Any]) -> list[str]:
    """Two lines that add up: searches with their clicks, and queries; of the entry of a log in the report."""
    if not (searches := entry.get("searches")):
        return []
    parts = [(searches["used"], "used")]
    parts += [(counts, _REASONS[reason]) for reason, counts in searches["left_out"].items() if any(counts)]
    totals = [sum(counts[at] for counts, _ in parts) for at in (0, 1)]
    listed = " + ".join(f"{count:,} ({clicks:,}) {label}" for (count, clicks), label in parts)
    lines = [f"{name}: searches (clicks): {totals[0]:,} ({totals[1]:,}) read = {listed}"]
    queries = {split: count for split, count in entry["queries"].items() if count}
    queries |= {label.replace("_", " "): count for label, count in entry.get("queries_left_out", {}).items() if count}
    if foreign := entry.get("queries_of_another_evaluation"):
        queries["that another data set judges"] = foreign
    listed = " + ".join(f"{count:,} {label}" for label, count in queries.items())
    return [*lines, f"{name}: queries: {sum(queries.values()):,} read = {listed}"]
