"""The searches of a UBI log (index `ubi_queries`): what was asked and shown is kept, who asked only for robots."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steps.core.progress import progress
from steps.ingest.log_values import as_id, as_text
from steps.ingest.params import UbiSource
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, Gone, json_value
from steps.ingest.search_log import SearchLog
from steps.ingest.source_files import table_files
from steps.ingest.table_rows import Row, read_rows
from steps.ingest.times import Window, unix_seconds

OUTSIDE, UNUSABLE = -1, -2
_DAY_SECONDS = 24 * 3600


@dataclass
class Searches:
    """The searches of a log by number; search n showed `documents[starts[n]:starts[n + 1]]`, empty = not recorded."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Number by query_id; OUTSIDE the window or UNUSABLE where the search is left out."""
    ids: list[str] = field(default_factory=list)
    queries: array = field(default_factory=lambda: array("i"))
    times: array = field(default_factory=lambda: array("q"))
    clients: array = field(default_factory=lambda: array("i"))
    """Number of the client_id of each search; -1 without one."""
    starts: array = field(default_factory=lambda: array("q", [0]))
    documents: array = field(default_factory=lambda: array("i"))
    ranks: array = field(default_factory=lambda: array("i"))
    impressions_outside: int = 0
    unknown_documents: int = 0

    def left_out(self) -> dict[str, int]:
        """How many searches lie outside the window or cannot be used."""
        numbers = list(self.numbers.values())
        return {"outside_window": numbers.count(OUTSIDE), "unusable": numbers.count(UNUSABLE)}

    def visits(self) -> np.ndarray:
        """Which searches are of one client on one day (UTC): equal numbers from 0, int32 `(searches,)`.

        One without client_id has its own.
        """
        clients, days = np.array(self.clients, dtype=np.int64), np.array(self.times, dtype=np.int64) // _DAY_SECONDS
        days -= days.min(initial=0)
        keys = np.where(clients >= 0, clients * (days.max(initial=0) + 1) + days, -1 - np.arange(len(clients)))
        return np.unique(keys, return_inverse=True)[1].astype(np.int32)


def read_searches(
    source: UbiSource,
    log: SearchLog,
    documents: Mapping[str, int],
    *,
    key: str,
    window: Window,
    max_reject_ratio: float,
    rejects: Rejects,
) -> Searches:
    """Read the searches in the window, and note their queries in the log; `documents`: number by original id.

    A search without text (browsing) becomes a reject that counts as no defect, as does one delivered twice and one
    with hits that the corpus lacks, unless most searches have no others. Further responses to a search
    (`query_response_id`), such as its next page, continue its ranks.
    """
    wanted = dict.fromkeys(("query_id", "user_query", "timestamp"), f"{key}.queries")
    reader = _Reader(log, documents, window, rejects)
    read: list[str] = []
    for file in table_files(source.queries, f"{key}.queries", window):
        name = f"{source.name}/queries/{file.name}"
        read.append(name)
        rows = read_rows(
            file.path,
            wanted=wanted,
            optional=["client_id", "query_response_id", "query_response_hit_ids"],
            source=name,
            rejects=rejects,
        )
        rows = rejects.watched(rows, name, file.path, max_reject_ratio)
        for row in progress(rows, None, f"searches of {name}"):
            try:
                reader.read(row, name)
            except Defect as defect:
                rejects.add(name, row.line, defect.reason, row.raw())
        rejects.check(name, file.path, max_reject_ratio)
    outside = reader.searches.left_out()["outside_window"]
    rejects.check_log(read, f"params.yaml: {key}.queries, {source.queries}", others=outside)
    return reader.finished()


class _Reader:
    def __init__(self, log: SearchLog, documents: Mapping[str, int], window: Window, rejects: Rejects) -> None:
        self.log, self.documents, self.window, self.rejects = log, documents, window, rejects
        self.searches = Searches()
        self.responses = array("q")  # of each search: a hash of the first response's id
        self.later_responses: dict[int, set[int]] = {}  # by search
        self.hits = array("i")  # of each search: how many hits it had so far
        self.shown_by = array("i")  # of each shown document: its search
        self.clients: dict[str, int] = {}

    def read(self, row: Row, name: str) -> None:
        """Take one row in; Defect when it cannot be used."""
        searches, get = self.searches, row.values.get
        search_id = as_id(get("query_id"))
        response = hash(str(get("query_response_id") or ""))
        known = searches.numbers.get(search_id)
        if known is None:
            searches.numbers[search_id] = UNUSABLE
        hits = _hits(get("query_response_hit_ids"))
        if known is None:
            search = self._number(search_id, response, row, name)
        elif known == OUTSIDE or self._is_further_response(known, response):
            search = known
        else:
            self.rejects.add(name, row.line, "duplicate_id", row.raw(), defect=False)
            return
        if search == OUTSIDE:
            searches.impressions_outside += len(hits)
        elif search != UNUSABLE:
            self._show(search, hits, row, name)

    def _is_further_response(self, search: int, response: int) -> bool:
        if search < 0 or response == self.responses[search]:
            return False
        later = self.later_responses.setdefault(search, set())
        is_new = response not in later
        later.add(response)
        return is_new

    def _number(self, search_id: str, response: int, row: Row, name: str) -> int:
        """The number of a search seen for the first time; negative when it is left out."""
        searches, get = self.searches, row.values.get
        timestamp = unix_seconds(get("timestamp"))
        if not self.window.holds(timestamp):
            searches.numbers[search_id] = OUTSIDE
            return OUTSIDE
        text = as_text(get("user_query") or "")
        if not text:
            self.rejects.add(name, row.line, "empty_text", row.raw(), defect=False)
            return UNUSABLE
        query = self.log.query(text, timestamp, name, row.line)
        number = searches.numbers[search_id] = len(searches.ids)
        searches.ids.append(search_id)
        searches.queries.append(query)
        searches.times.append(timestamp)
        client = get("client_id")
        known = client is not None and client != ""
        searches.clients.append(self.clients.setdefault(str(client), len(self.clients)) if known else -1)
        self.responses.append(response)
        self.hits.append(0)
        return number

    def _show(self, search: int, hits: Mapping[str, None], row: Row, name: str) -> None:
        """Add the hits of a row to its search."""
        searches = self.searches
        unknown = sum(hit not in self.documents for hit in hits)
        if unknown:
            searches.unknown_documents += unknown
            if unknown == len(hits):
                self.rejects.add_of_log(name, row.line, Gone("unknown_document"), row.raw())
            else:
                self.rejects.add(name, row.line, "unknown_document", row.raw(), defect=False)
        for rank, hit in enumerate(hits, start=self.hits[search] + 1):
            if (number := self.documents.get(hit)) is not None:
                self.shown_by.append(search)
                searches.documents.append(number)
                searches.ranks.append(rank)
        self.hits[search] += len(hits)

    def finished(self) -> Searches:
        """The searches with what they showed sorted by search and rank, a document of several responses once."""
        searches = self.searches
        shown_by, documents, ranks = (
            np.array(column, dtype=np.int32) for column in (self.shown_by, searches.documents, searches.ranks)
        )
        if self.later_responses:
            pairs = shown_by.astype(np.int64) * max(len(self.documents), 1) + documents
            order = np.lexsort((ranks, pairs))
            first = order[np.unique(pairs[order], return_index=True)[1]]
            first = first[np.lexsort((ranks[first], shown_by[first]))]
            shown_by, documents, ranks = shown_by[first], documents[first], ranks[first]
        starts = np.searchsorted(shown_by, np.arange(len(searches.ids) + 1))
        searches.starts = array("q", starts.astype(np.int64).tobytes())
        searches.documents, searches.ranks = array("i", documents.tobytes()), array("i", ranks.tobytes())
        return searches


def _hits(value: Any) -> dict[str, None]:
    """The ids that were shown, in order, each once; a string holds them as JSON."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = json_value(value, "wrong_type")
    if value is None:
        return {}
    if not isinstance(value, list):
        raise Defect("wrong_type")
    return dict.fromkeys(map(as_id, value))
