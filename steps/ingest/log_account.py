"""What became of the searches, clicks and queries of a log: every one that was read is counted once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from steps.ingest.coded_columns import codes

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
