"""The searches of a UBI log (index `ubi_queries`): what was asked and shown is kept, who asked only for robots."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steps.ingest.batches import Row
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, MissingTarget, json_value
from steps.ingest.search_log import SearchLog, Tables
from steps.ingest.source import LogSource, ReadContext
from steps.ingest.times import Window, unix_time
from steps.ingest.values import Ids, as_id, as_query, unwrapped

UNUSABLE, AFTER, BEFORE = -1, -2, -3  # of searches left out; the last two lie after and before the window
_DAY_SECONDS = 24 * 3600


@dataclass
class Searches:
    """The searches of a log by number; search n showed `documents[starts[n]:starts[n + 1]]`, empty = not recorded."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Number by query_id; UNUSABLE, AFTER or BEFORE where the search is left out."""
    ids: list[str] = field(default_factory=list)
    queries: array = field(default_factory=lambda: array("i"))
    """Number of the query of each search; -1 where the search is left out after all."""
    times: array = field(default_factory=lambda: array("q"))
    clients: array = field(default_factory=lambda: array("i"))
    """Number of the client_id of each search; -1 without one."""
    starts: array = field(default_factory=lambda: array("q", [0]))
    documents: array = field(default_factory=lambda: array("i"))
    ranks: array = field(default_factory=lambda: array("i"))
    impressions_outside: int = 0
    impressions_late: int = 0
    """Of searches before `test_from`: shown, or clicked, only from then on."""
    unknown_documents: int = 0

    def left_out(self) -> dict[str, int]:
        """How many searches lie outside the window or cannot be used."""
        numbers = list(self.numbers.values())
        outside = numbers.count(BEFORE) + numbers.count(AFTER)
        return {"outside_window": outside, "unusable": numbers.count(UNUSABLE)}

    def visits(self) -> np.ndarray:
        """Which searches are of one client on one day (UTC): equal numbers from 0, int32 `(searches,)`.

        One without client_id has its own.
        """
        clients, days = np.array(self.clients, dtype=np.int64), np.array(self.times, dtype=np.int64) // _DAY_SECONDS
        days -= days.min(initial=0)
        keys = np.where(clients >= 0, clients * (days.max(initial=0) + 1) + days, -1 - np.arange(len(clients)))
        return np.unique(keys, return_inverse=True)[1].astype(np.int32)


def read_searches(source: LogSource, context: ReadContext, log: SearchLog, documents: Mapping[str, int]) -> Searches:
    """Read the searches in the window, and note their queries in the log; `documents`: number by original id.

    A search without text (browsing) counts as no defect, nor does one delivered twice, nor hits that the corpus lacks,
    unless most searches have no others. Further responses to a search (`query_response_id`, or without it other hits),
    such as its next page, continue its ranks in the order of their times, wherever they stand; those that come at or
    after `test_from` say nothing about a search before it. A search belongs to the window of its first response; of
    its others those inside count. One whose first row, as read, cannot be used is left out.
    """
    required = dict.fromkeys(("query_id", "user_query", "timestamp"), f"{context.key}.queries")
    optional = ("client_id", "query_response_id", "query_response_hit_ids")
    reader = _Reader(log, documents, context.window, context.rejects, source)
    tables = Tables(source, "queries", context, context.window)
    for name, row in tables.rows(required, optional, gap="user_query"):  # a small file may be all browsing
        with context.rejects.guard(name, row.line, row.raw):
            reader.add(row, name)
    tables.check_log(other_rows=reader.searches.left_out()["outside_window"])
    return reader.finished()


class _Reader:
    def __init__(
        self, log: SearchLog, documents: Mapping[str, int], window: Window, rejects: Rejects, source: LogSource
    ) -> None:
        self.log, self.documents, self.window, self.rejects, self.source = log, documents, window, rejects, source
        self.doc_ids = Ids(documents)
        self.searches = Searches()
        self.texts: dict[str, int] = {}
        self.files: list[str] = []  # the last is the one being read
        self.clients: dict[str, int] = {}
        # Of each search: when its earliest response came, the number of its text, where it stands; the first one read.
        self.times, self.text_numbers = array("d"), array("i")
        self.file_of, self.lines, self.first = array("i"), array("q"), array("i")
        self.later: dict[int, dict[int, int]] = {}  # responses read later: by search, then by the hash of their id
        # Of each response: its search, -1 where another took its place; when it came, its hits, the hash of its id.
        self.response_of, self.response_times = array("i"), array("d")
        self.response_hits, self.response_ids = array("i"), array("q")
        self.shown_in = array("i")  # of each shown document: its response

    def add(self, row: Row, name: str) -> None:
        """Take one row in; Defect when it cannot be used."""
        searches, get = self.searches, row.values.get
        search_id = as_id(get("query_id"))
        number = searches.numbers.get(search_id)
        if number is None:
            searches.numbers[search_id] = UNUSABLE
        hits = _hits(get("query_response_hit_ids"))
        if number == UNUSABLE:
            raise LeftOut("duplicate_id")
        time = unix_time(unwrapped(get("timestamp")), self.source.timestamp)
        if number == BEFORE or not self.window.holds(time):
            searches.impressions_outside += len(hits)
            if time < self.window.start:
                searches.numbers[search_id] = BEFORE
            elif number is None:
                searches.numbers[search_id] = AFTER
            return
        search = len(searches.ids) if number is None or number == AFTER else number
        is_new = search == len(searches.ids)
        response_id = unwrapped(get("query_response_id"))
        unnamed = response_id is None or response_id == ""
        response = hash(tuple(hits) if unnamed else str(response_id))
        twin = None if is_new else self._twin(search, response)
        adds_nothing = unnamed and not hits and not is_new and time >= self.times[search]
        if adds_nothing or (twin is not None and time >= self.response_times[twin]):
            raise LeftOut("duplicate_id")
        if twin is not None:  # delivered before in the files, but later by its time
            self.rejects.add(name, row.line, "duplicate_id", row.raw(), defect=False)
            self.response_of[twin] = -1
        if is_new or time < self.times[search]:
            self._ask(search, search_id, time, row, name)
        if is_new:
            self.first.append(len(self.response_of))
        else:
            self.later.setdefault(search, {})[response] = len(self.response_of)
        self.response_of.append(search)
        self.response_times.append(time)
        self.response_hits.append(len(hits))
        self.response_ids.append(response)
        self._show(hits)

    def _twin(self, search: int, response: int) -> int | None:
        """The number of the response to the search that has the same id."""
        first = self.first[search]
        return self.later.get(search, {}).get(response, first if self.response_ids[first] == response else None)

    def _ask(self, search: int, search_id: str, time: float, row: Row, name: str) -> None:
        """Note the earliest response so far to a search; a Defect leaves the search UNUSABLE."""
        searches, get = self.searches, row.values.get
        searches.numbers[search_id] = UNUSABLE
        text = as_query(get("user_query") or "")
        if not text:
            raise LeftOut("empty_text")
        if text not in self.texts:
            self.log.folded(text)
            self.texts[text] = len(self.texts)
        if not self.files or name != self.files[-1]:
            self.files.append(name)
        if search == len(searches.ids):
            searches.ids.append(search_id)
            for column in (self.times, self.text_numbers, self.file_of, self.lines, searches.clients):
                column.append(0)
        client = unwrapped(get("client_id"))
        has_client = client is not None and client != ""
        self.times[search], self.text_numbers[search] = time, self.texts[text]
        self.file_of[search], self.lines[search] = len(self.files) - 1, row.line
        searches.clients[search] = self.clients.setdefault(str(client), len(self.clients)) if has_client else -1
        searches.numbers[search_id] = search

    def _show(self, hits: Mapping[str, None]) -> None:
        """Note the hits of the last response; a Defect tells of those that the corpus lacks."""
        searches = self.searches
        doc_ids = [self.doc_ids.find(hit) for hit in hits]
        for rank, doc_id in enumerate(doc_ids, start=1):
            if doc_id is not None:
                self.shown_in.append(len(self.response_of) - 1)
                searches.documents.append(self.documents[doc_id])
                searches.ranks.append(rank)
        if unknown := doc_ids.count(None):
            searches.unknown_documents += unknown
            raise (MissingTarget if unknown == len(hits) else LeftOut)("unknown_document")

    def finished(self) -> Searches:
        """The searches with what they showed sorted by search and rank, a document of several responses once."""
        searches, texts = self.searches, list(self.texts)
        searches.times = array("q", map(int, self.times))
        numbers = np.array([*(searches.numbers[search_id] for search_id in searches.ids), UNUSABLE], dtype=np.int32)
        for search, time in enumerate(searches.times):
            text, file = texts[self.text_numbers[search]], self.files[self.file_of[search]]
            is_used = numbers[search] >= 0
            searches.queries.append(self.log.query(text, time, file, self.lines[search]) if is_used else -1)
        of, hits = np.array(self.response_of, dtype=np.int32), np.array(self.response_hits, dtype=np.int32)
        searches.impressions_outside += int(hits[numbers[of] == BEFORE].sum())
        shown_in, documents, ranks = (
            np.array(column, dtype=np.int32) for column in (self.shown_in, searches.documents, searches.ranks)
        )
        several = len(of) > len(searches.ids)
        arrival_times = np.array(self.response_times)
        if several:
            ranks += _hits_before(of, arrival_times, hits)[shown_in]
        shown_by = of[shown_in]
        used = numbers[shown_by] >= 0  # the last number, where a response was replaced, is not
        cut, first_times = self.source.cut, np.array([*searches.times, 0])[shown_by]
        late = used & (arrival_times[shown_in] >= cut) & (first_times < cut)
        searches.impressions_late, used = int(late.sum()), used & ~late
        if not used.all():
            shown_by, documents, ranks = shown_by[used], documents[used], ranks[used]
        if several:
            pairs = shown_by.astype(np.int64) * max(len(self.documents), 1) + documents
            order = np.lexsort((ranks, pairs))
            first = order[np.unique(pairs[order], return_index=True)[1]]
            first = first[np.lexsort((ranks[first], shown_by[first]))]
            shown_by, documents, ranks = shown_by[first], documents[first], ranks[first]
        starts = np.searchsorted(shown_by, np.arange(len(searches.ids) + 1))
        searches.starts = array("q", starts.astype(np.int64).tobytes())
        searches.documents, searches.ranks = array("i", documents.tobytes()), array("i", ranks.tobytes())
        return searches


def _hits_before(of: np.ndarray, times: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """How many hits the earlier responses to the same search had, of each response; int32."""
    order = np.lexsort((times, of))
    before = np.cumsum(hits[order], dtype=np.int64) - hits[order]
    counts = np.empty(len(of), dtype=np.int32)
    counts[order] = before - before[np.searchsorted(of[order], of[order])]
    return counts


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
