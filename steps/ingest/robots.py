"""What robots leave in a search log: sessions that no person has, and one query asked over and over."""

import numpy as np
import pyarrow as pa

from steps.ingest.coded_columns import codes
from steps.ingest.params import ClickLogSource, LogSource

OF_LONG_SESSIONS, OF_FREQUENT_QUERIES = "of_long_sessions", "of_frequent_queries"


def without_robots(
    log: pa.Table, source: LogSource, seed: int, visits: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    """Which impressions of a log count, `(impressions,)`, and how many do not, by reason; no reason without any.

    A session of more than `max_session_impressions` counts for nothing, where the log has sessions of its own: what all
    people asked at one time, or on one day where times are days, is nobody's. `visits`, numbers from 0
    `(impressions,)`, are counted instead where they are given: a session that is one search is never long. Of a query's
    other impressions, `max_query_impressions` drawn by seed count, so that shares of clicks stay what they are.
    """
    if visits is None and isinstance(source, ClickLogSource) and source.columns.session_id:
        visits = codes(log["session"])
    is_kept = np.ones(log.num_rows, dtype=bool)
    if visits is not None:
        is_kept = (np.bincount(visits) <= source.max_session_impressions)[visits]
    counts = {OF_LONG_SESSIONS: int((~is_kept).sum())}
    query = log["query"].to_numpy()
    frequent = np.bincount(query[is_kept]) > source.max_query_impressions
    rows = np.flatnonzero(is_kept)
    rows = rows[frequent[query[rows]]]
    rows = rows[np.argsort(query[rows], kind="stable")]
    for of_one in np.split(rows, np.flatnonzero(np.diff(query[rows])) + 1) if len(rows) else ():
        shuffled = np.random.default_rng([seed, query[of_one[0]]]).permutation(of_one)
        is_kept[shuffled[source.max_query_impressions :]] = False
    counts[OF_FREQUENT_QUERIES] = int((~is_kept).sum()) - counts[OF_LONG_SESSIONS]
    return is_kept, {reason: count for reason, count in counts.items() if count}
