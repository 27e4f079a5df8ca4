"""A log in the schema of User Behavior Insights 1.x: the indexes `ubi_queries` and `ubi_events` as files.

A search (its `query_id`) is a session. It showed `query_response_hit_ids` in their order, or, where it has none, what
the events of the actions impression and view name at their ordinals. Schema: https://o19s.github.io/ubi
"""

import numpy as np
import pyarrow as pa

from steps.ingest.coded_columns import coded
from steps.ingest.log_corpus import read_corpus
from steps.ingest.log_splits import AFTER_TEST_FROM, add_log
from steps.ingest.params import UbiSource
from steps.ingest.rejects import Rejects
from steps.ingest.relevance import QueryNames, log_relevance
from steps.ingest.search_log import SearchLog
from steps.ingest.source_data import SourceData
from steps.ingest.table_rows import Form
from steps.ingest.times import Window
from steps.ingest.ubi_events import read_events
from steps.ingest.ubi_searches import read_searches

_BATCH_ROWS = 1_000_000


def read_ubi(source: UbiSource, *, key: str, window: Window, seed: int, rejects: Rejects) -> SourceData:
    """Read a UBI log, its corpus and its relevance table; `key` is where params.yaml names the source.

    Raises UserError for a missing file or column, a log without test queries, or too many defect rows.
    """
    documents = read_corpus(
        source.name,
        source.corpus,
        source.corpus_columns,
        key=key,
        form=Form(source.encoding, source.delimiter),
        rejects=rejects,
    )
    data = SourceData(source.name, documents=list(documents.values()))
    numbers = {original: number for number, original in enumerate(documents)}
    log = SearchLog()
    searches = read_searches(source, log, numbers, key=key, window=window, rejects=rejects)
    impressions, events_left_out = read_events(source, searches, numbers, key=key, window=window, rejects=rejects)
    queries, times = np.array(searches.queries, dtype=np.int32), np.array(searches.times, dtype=np.int64)
    for start in range(0, len(impressions.searches), _BATCH_ROWS):
        search_numbers, doc_numbers, ranks, clicked = (column[start : start + _BATCH_ROWS] for column in impressions)
        first, last = int(search_numbers[0]), int(search_numbers[-1])  # sorted by search
        ids = pa.array([f"{source.name}/{search_id}" for search_id in searches.ids[first : last + 1]], pa.string())
        log.add(
            coded(search_numbers - first, ids),
            queries[search_numbers],
            doc_numbers,
            ranks,
            clicked,
            times[search_numbers],
        )
    data.facts["searches_left_out"] = searches.left_out()
    data.facts["events_left_out"] = events_left_out
    data.facts["impressions_left_out"] = {
        "outside_window": searches.impressions_outside,
        "unknown_document": searches.unknown_documents,
        AFTER_TEST_FROM: searches.impressions_late,
    }
    visits = searches.visits()[impressions.searches]
    add_log(data, log, source, seed=seed, key=key, rejects=rejects, visits=visits)
    of_searches = data.facts["searches"]
    seen = of_searches["used"][0] + sum(count for count, _ in of_searches["left_out"].values())
    lost = searches.left_out()
    nothing_shown = len(searches.numbers) - sum(lost.values()) - seen
    of_searches["left_out"] |= {reason: [n, 0] for reason, n in (lost | {"nothing_shown": nothing_shown}).items()}
    names = QueryNames()
    if source.relevance:
        for search_id, number in zip(searches.ids, searches.queries, strict=True):
            if number >= 0:
                names.add(search_id, number)
    data.relevance = log_relevance(source, log, names, documents, key=key, facts=data.facts, rejects=rejects)
    return data
