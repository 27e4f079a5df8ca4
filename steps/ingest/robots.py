"""What robots leave in a search log: sessions that no person has, and one query asked over and over."""

import numpy as np
import pyarrow as pa

from steps.ingest.params import LogSource

OF_LONG_SESSIONS, OF_FREQUENT_QUERIES = "of_long_sessions", "of_frequent_queries"


def without_robots(log: pa.Table, source: LogSource, seed: int) -> tuple[np.ndarray, dict[str, int]]:
    """Which impressions of a log count, `(impressions,)`, and how many do not, by reason; no reason without any.

    A session of more than `max_session_impressions` counts for nothing. Of a query's others, `max_query_impressions`
    drawn by seed do, so that shares of clicks stay what they are.
    """
    chunks = log["session"].unify_dictionaries().chunks
    sessions = np.concatenate([np.zeros(0, dtype=np.int32), *(chunk.indices.to_numpy() for chunk in chunks)])
    kept = (np.bincount(sessions) <= source.max_session_impressions)[sessions]
    counts = {OF_LONG_SESSIONS: int((~kept).sum())}
    query = log["query"].to_numpy()
    for number in np.flatnonzero(np.bincount(query[kept]) > source.max_query_impressions).tolist():
        rows = np.flatnonzero(kept & (query == number))
        kept[np.random.default_rng([seed, number]).permutation(rows)[source.max_query_impressions :]] = False
    counts[OF_FREQUENT_QUERIES] = int((~kept).sum()) - counts[OF_LONG_SESSIONS]
    return kept, {reason: count for reason, count in counts.items() if count}
