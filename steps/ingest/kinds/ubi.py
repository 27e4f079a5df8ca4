"""A log in the schema of User Behavior Insights 1.x: the indexes `ubi_queries` and `ubi_events` as files.

A search (its `query_id`) is a session. It showed `query_response_hit_ids` in their order, or, where it has none, what
the events of the actions impression and view name at their ordinals. Schema: https://o19s.github.io/ubi
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from steps.ingest.coded_columns import coded
from steps.ingest.log_splits import AFTER_TEST_FROM, add_log
from steps.ingest.relevance import QueryNames, log_relevance
from steps.ingest.search_log import SearchLog, read_corpus
from steps.ingest.source import Location, LogSource, Name, ReadContext, SourceData
from steps.ingest.times import Window
from steps.ingest.ubi_events import SESSION_SECONDS, read_events
from steps.ingest.ubi_searches import read_searches

_BATCH_ROWS = 1_000_000


class UbiSource(LogSource):
    """Searches and events in the schema of User Behavior Insights 1.x."""

    kind: Literal["ubi"]
    """A search log in the schema of User Behavior Insights; see recipes/ubi.yaml."""
    queries: Name
    """Folder or file of the index ubi_queries, JSONL or Parquet."""
    events: Name
    """Folder or file of the index ubi_events."""
    click_actions: list[Name] = Field(default=["click"], min_length=1)
    """Events that count as clicks, in any case; click_through and purchase are others."""
    impression_actions: list[Name] = Field(default=["impression", "view"], min_length=1)
    """Events that say what a search without hits showed."""

    def locations(self, key: str, window: Window) -> Iterator[Location]:
        """Both indexes in the window, events for a day longer; the corpus and the table of scores."""
        events = (self.events, window.longer(SESSION_SECONDS))
        return self.log_locations(key, queries=(self.queries, window), events=events)

    def read(self, context: ReadContext) -> SourceData:
        """Read the log, its corpus and its relevance table.

        Raises UserError for a missing file or column, a log without test queries, or too many defect rows.
        """
        documents = read_corpus(self, context)
        data = SourceData(self.name, documents=list(documents.values()))
        numbers = {original: number for number, original in enumerate(documents)}
        log = SearchLog()
        searches = read_searches(self, context, log, numbers)
        actions = (self.click_actions, self.impression_actions)
        impressions, events_left_out = read_events(self, *actions, context, searches, numbers)
        queries, times = np.array(searches.queries, dtype=np.int32), np.array(searches.times, dtype=np.int64)
        for start in range(0, len(impressions.searches), _BATCH_ROWS):
            shown_by, doc_numbers, ranks, clicked = (column[start : start + _BATCH_ROWS] for column in impressions)
            first, last = int(shown_by[0]), int(shown_by[-1])  # sorted by search
            ids = pa.array([f"{self.name}/{search_id}" for search_id in searches.ids[first : last + 1]], pa.string())
            sessions = coded(shown_by - first, ids)
            log.add(sessions, queries[shown_by], doc_numbers, ranks, clicked, times[shown_by])
        lost = searches.left_out()
        data.facts["searches_left_out"] = lost
        data.facts["events_left_out"] = events_left_out
        data.facts["impressions_left_out"] = {
            "outside_window": searches.impressions_outside,
            "unknown_document": searches.unknown_documents,
            AFTER_TEST_FROM: searches.impressions_late,
        }
        add_log(data, log, self, context, visits=searches.visits()[impressions.searches])
        counts = data.facts["searches"]
        seen = counts["used"][0] + sum(count for count, _ in counts["left_out"].values())
        nothing_shown = len(searches.numbers) - sum(lost.values()) - seen
        counts["left_out"] |= {reason: [n, 0] for reason, n in (lost | {"nothing_shown": nothing_shown}).items()}
        names = QueryNames()
        for search_id, number in zip(searches.ids, searches.queries, strict=True):
            if self.relevance and number >= 0:
                names.add(search_id, number)
        data.relevance = log_relevance(self, context, log, names, documents, data.facts)
        return data
