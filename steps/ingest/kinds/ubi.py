"""A log in the schema of User Behavior Insights 1.x: the indexes `ubi_queries` and `ubi_events` as files.

A search (its `query_id`) is a session. It showed `query_response_hit_ids` in their order, or, where it has none, what
the events of the actions impression and view name at their ordinals. Schema: https://o19s.github.io/ubi
"""

import json
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from slimtower.common.errors import UserError
from steps.ingest.batches import Row
from steps.ingest.coded_columns import append, coded, columns
from steps.ingest.rejects import Clicks, Rejects
from steps.ingest.relevance import log_relevance
from steps.ingest.rows import Defect, LeftOut, MissingTarget, json_value
from steps.ingest.search_log import AFTER_TEST_FROM, SearchLog, Tables, add_log, read_corpus
from steps.ingest.source import Location, LogSource, Name, ReadContext, SourceData
from steps.ingest.times import Window, unix_time
from steps.ingest.ubi_searches import AFTER, BEFORE, Searches, read_searches
from steps.ingest.values import Ids, as_id, detect_rank_from, rank_of, unwrapped

_BATCH_ROWS = 1_000_000
SESSION_SECONDS = 24 * 3600  # so long after its search an event may come
_NEVER_SHOWN = "click_without_impression"
_ATTRIBUTES, _NO_RANK, _MOST_ACTIONS, _NAMED_ACTIONS = "event_attributes", -1, 1000, 8
_OBJECT = (_ATTRIBUTES, "object", "object_id")
_RANKS = ((_ATTRIBUTES, "position", "ordinal"), (_ATTRIBUTES, "position"), (_ATTRIBUTES, "rank"))  # the last: o19s'
_FLAT = [".".join(path[:length]) for path in (_OBJECT, *_RANKS) for length in range(2, len(path) + 1)]


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
        impressions, events_left_out = self._read_events(context, searches, numbers)
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
        query_numbers = {
            search_id: number
            for search_id, number in zip(searches.ids, searches.queries, strict=True)
            if self.relevance and number >= 0
        }
        data.relevance = log_relevance(self, context, log, query_numbers, documents, data.facts)
        return data

    def _read_events(
        self, context: ReadContext, searches: Searches, documents: Mapping[str, int]
    ) -> tuple["Impressions", dict[str, int]]:
        """What was shown and clicked, and how many events were left out, by reason.

        An event at or after `test_from` says nothing about a search before it. What such a search showed and was
        clicked only then is left out: it is no document that nobody clicked. An event of the window's first day may
        belong to a search before the window, whose partition is not read; those up to SESSION_SECONDS after the window
        are read, for the searches inside. Raises UserError for a missing file or column, too many defect rows, events
        of which none is a click, or where most clicks are lost.
        """
        reader = _Reader(self, context.window, searches, documents)
        required = dict.fromkeys(("action_name", "timestamp"), f"{context.key}.events")
        tables = Tables(self, "events", context, context.window.longer(SESSION_SECONDS))
        for name, row in tables.rows(required, ["query_id", _ATTRIBUTES, *_FLAT]):
            with context.rejects.guard(name, row.line, row.raw):
                reader.add(row, name)
        reader.check_actions(f"params.yaml: {context.key}.click_actions")
        impressions = reader.impressions(context.rejects)
        tables.check_log(other_rows=sum(reader.left_out.values()))
        reader.clicks.check(
            tables.subject,
            "query_response_hit_ids and object_id must both be ids of the corpus, not an engine's own numbers",
        )
        return impressions, dict(sorted(reader.left_out.items()))


class Impressions(NamedTuple):
    """What the searches showed, sorted by search and rank: arrays of one length."""

    searches: np.ndarray
    documents: np.ndarray
    ranks: np.ndarray
    clicked: np.ndarray


class _Reader:
    def __init__(self, source: UbiSource, window: Window, searches: Searches, documents: Mapping[str, int]) -> None:
        self.source, self.searches, self.documents = source, searches, documents
        self.search_ids, self.ids = Ids(searches.numbers), Ids(documents)
        self.window, self.longer = window, window.longer(SESSION_SECONDS)
        self.click_actions = frozenset(map(_folded, source.click_actions))
        self.actions = self.click_actions | frozenset(map(_folded, source.impression_actions))
        self.cut = source.cut
        self.seen, self.of_searches = Counter[str](), Counter[str]()  # events by action: all, and those of a search
        self.clicks = Clicks()
        reasons = ("clicks_after_test_from", "impressions_after_test_from", "not_of_a_search", "outside_window")
        self.left_out = Counter(dict.fromkeys(reasons, 0))
        self.clicked = bytearray(len(searches.documents))
        self.shown = columns("qi")  # pair of each impression, and its rank as it is spelled
        self.odd = columns("qiq")  # of rank 0 or none: place in `shown`, file and line
        self.late_clicks = array("q")  # pairs
        self.files: list[str] = []  # the last is the one being read
        # Clicks whose impression is known only when all events are read: pair, rank, file and line.
        self.later_clicks = columns("qiiq")
        self.originals = list(documents)

    def add(self, row: Row, name: str) -> None:
        """Take one event of a file in; Defect when it is one that counts and cannot be used."""
        if not self.files or name != self.files[-1]:
            self.files.append(name)
        action, search_id = unwrapped(row.values.get("action_name")), unwrapped(row.values.get("query_id"))
        if not isinstance(action, str | None):
            raise LeftOut("wrong_type")
        action = _folded(action or "")
        is_of_search = search_id is not None and search_id != ""
        if action in self.seen or len(self.seen) < _MOST_ACTIONS:
            self.seen[action] += 1
            self.of_searches[action] += is_of_search
        if action not in self.actions or not is_of_search:
            self.left_out["not_of_a_search"] += 1
            return
        is_click = action in self.click_actions
        timestamp = int(unix_time(unwrapped(row.values.get("timestamp")), self.source.timestamp))
        matched_id = self.search_ids.find(as_id(search_id))
        search = None if matched_id is None else self.searches.numbers[matched_id]
        inside = self.window if search is None else self.longer
        if search in (AFTER, BEFORE) or not inside.holds(timestamp):
            self.left_out["outside_window"] += 1
            return
        if search is None and timestamp < self.window.start + SESSION_SECONDS:
            self.left_out["unknown_search"] += 1
            return
        if search is not None and search < 0:
            self.left_out["of_unusable_searches"] += 1
            return
        late = search is not None and self.searches.times[search] < self.cut <= timestamp
        if not is_click:
            self._impression(row, search, late)
            return
        self.clicks.total += not late
        try:
            self._click(row, search, late)
        except Defect as defect:
            if not late:
                self.clicks.lose(f"line {row.line} of {self.files[-1]} ({defect.reason})")
            raise

    def _impression(self, row: Row, search: int | None, late: bool) -> None:
        if search is None:
            raise MissingTarget("unknown_query")
        values, pair = self._pair(row, search)
        if late:
            self.left_out["impressions_after_test_from"] += 1
        elif not self._has_hits(search):
            ordinal = _ordinal(values)
            rank = _NO_RANK if ordinal is None or ordinal == "" else rank_of(ordinal, 0)
            if rank < 1:
                append(self.odd, len(self.shown[0]), len(self.files) - 1, row.line)
            append(self.shown, pair, rank)

    def _click(self, row: Row, search: int | None, late: bool) -> None:
        if search is None:
            raise MissingTarget(_NEVER_SHOWN)
        values, pair = self._pair(row, search)
        if late:
            self.left_out["clicks_after_test_from"] += 1
            self.late_clicks.append(pair)
        elif not self._has_hits(search):
            append(self.later_clicks, pair, _rank_or_none(values), len(self.files) - 1, row.line)
        else:
            start, end = self.searches.starts[search], self.searches.starts[search + 1]
            try:
                position = start + self.searches.documents[start:end].index(pair % len(self.documents))
            except ValueError:
                raise MissingTarget(_NEVER_SHOWN) from None
            self.clicked[position] = 1

    def _has_hits(self, search: int) -> bool:
        return self.searches.starts[search] != self.searches.starts[search + 1]

    def _pair(self, row: Row, search: int) -> tuple[Mapping[str, Any], int]:
        """The values, what is JSON in them read, and the search with its document as one number."""
        values = row.values
        try:
            attributes = unwrapped(values.get(_ATTRIBUTES))
            if isinstance(attributes, str) and attributes:
                values = {**values, _ATTRIBUTES: json_value(attributes, "wrong_type")}
            original = as_id(_at(values, _OBJECT))
        except Defect as defect:
            raise LeftOut(defect.reason) from None  # people click what is no document, too
        key = self.ids.find(original)
        if key is None:
            raise MissingTarget("unknown_document")
        return values, search * len(self.documents) + self.documents[key]

    def check_actions(self, key: str) -> None:
        """UserError where there are events, and none is a click on something that a search showed."""
        if any(self.of_searches[action] for action in self.click_actions):
            return
        if not self.seen or (not self.source.test_from and self.actions.issuperset(self.seen)):
            return
        named = ", ".join(f"{action!r} ({count:,})" for action, count in self.seen.most_common(_NAMED_ACTIONS))
        nameless = sum(self.seen[action] for action in self.click_actions)
        problem = f"the {nameless:,} clicks name no query_id" if nameless else "no event is a click"
        raise UserError(
            f"{key}: {problem} ({', '.join(self.source.click_actions)}); the actions of the events are {named}: name"
            " those that are clicks"
        )

    def impressions(self, rejects: Rejects) -> Impressions:
        """Everything that was shown; clicks on what was not become rejects."""
        searches, width = self.searches, max(len(self.documents), 1)
        by_hits = np.repeat(np.arange(len(searches.ids)), np.diff(np.array(searches.starts)))
        click_pairs = np.array(self.later_clicks[0], dtype=np.int64)
        pairs, ranks = self._ranked(rejects)
        order = np.lexsort((ranks, pairs))
        pairs, at = np.unique(pairs[order], return_index=True)  # of several events the one of the lowest ordinal
        ranks = ranks[order][at]
        for index in np.flatnonzero(~np.isin(click_pairs, pairs)).tolist():
            pair, _, file_number, line = (column[index] for column in self.later_clicks)
            file = self.files[file_number]
            rejects.add_defect(file, line, MissingTarget(_NEVER_SHOWN), self._raw(pair))
            self.clicks.lose(f"line {line} of {file} ({_NEVER_SHOWN})")
        everything = Impressions(
            np.concatenate([by_hits, pairs // width]),
            np.concatenate([np.array(searches.documents, dtype=np.int64), pairs % width]),
            np.concatenate([np.array(searches.ranks, dtype=np.int32), ranks]),
            np.concatenate([np.frombuffer(self.clicked, dtype=np.bool_), np.isin(pairs, click_pairs)]),
        )
        late = ~everything.clicked & np.isin(everything.searches * width + everything.documents, self.late_clicks)
        searches.impressions_late += int(late.sum())
        order = np.lexsort((everything.ranks, everything.searches))
        order = order[~late[order]]
        return Impressions(*(column[order] for column in everything))

    def _ranked(self, rejects: Rejects) -> tuple[np.ndarray, np.ndarray]:
        """Pairs that events show, and their ranks from 1 on; those without one become rejects if others have one."""
        pairs, ranks = (np.array(column) for column in self.shown)
        impressions = sum(self.of_searches[action] for action in self.actions - self.click_actions)
        any_hits = len(self.searches.documents) or self.searches.unknown_documents
        if not impressions and len(self.later_clicks[0]) and not any_hits:
            self._say("no search has hits and no event is an impression, so what was clicked is all that was shown")
            pairs, ranks, *_ = (np.array(column) for column in self.later_clicks)
            return pairs, np.where(ranks < 1, self._by_order(pairs), ranks).astype(np.int32)
        if len(ranks) and (ranks == _NO_RANK).all():
            self._say(f"no impression has a {'.'.join(_RANKS[0])}, so their order in the files is their rank")
            return pairs, self._by_order(pairs)
        setting = self.source.rank_from
        rank_from = detect_rank_from(ranks.tolist()) if setting is None else setting
        if setting is None and rank_from == 0:
            self._say("ranks begin with 0 (else set rank_from: 1)")
        bad = ranks < rank_from
        for index, file, line in zip(*self.odd, strict=True):
            if bad[index]:
                reason = "missing_field" if ranks[index] == _NO_RANK else "bad_rank"
                rejects.add(self.files[file], line, reason, self._raw(int(pairs[index])))
        return pairs[~bad], (ranks[~bad] + 1 - rank_from).astype(np.int32)

    def _by_order(self, pairs: np.ndarray) -> np.ndarray:
        """The place of each pair among those of its search, from 1 on: int32 `(pairs,)`."""
        whose = pairs // max(len(self.documents), 1)
        order = np.argsort(whose, kind="stable")
        positions = np.empty(len(pairs), dtype=np.int32)
        positions[order] = np.arange(len(pairs)) - np.searchsorted(whose[order], whose[order]) + 1
        return positions

    def _raw(self, pair: int) -> str:
        search, document = divmod(pair, max(len(self.documents), 1))
        raw = {"query_id": self.searches.ids[search], "object_id": self.originals[document]}
        return json.dumps(raw, ensure_ascii=False)

    def _say(self, text: str) -> None:
        print(f"ingest: WARNING: {self.source.name}: {text}", file=sys.stderr)


def _folded(action: str) -> str:
    return action.strip().casefold()


def _at(value: Any, path: tuple[str, ...]) -> Any:
    """What lies at a path, in objects within objects or under dotted names; None for nothing, Defect `wrong_type`."""
    value = unwrapped(value)
    if not path or value is None or value == "":
        return value or None if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise Defect("wrong_type")
    for length in range(len(path), 0, -1):
        if value.get(name := ".".join(path[:length])) is not None:
            return _at(value[name], path[length:])
    return None


def _ordinal(values: Mapping[str, Any]) -> Any:
    """At which rank an event's object was, None where it does not say."""
    for path in _RANKS:
        try:
            ordinal = _at(values, path)
        except Defect:
            continue
        if isinstance(ordinal, dict):  # {"ordinal": {"value": 3}}
            ordinal = (
                ordinal.get("value", next(iter(ordinal.values()))) if len(ordinal) == 1 or "value" in ordinal else None
            )
        if ordinal is not None:
            return ordinal
    return None


def _rank_or_none(values: Mapping[str, Any]) -> int:
    try:
        return rank_of(_ordinal(values), 0)
    except Defect:
        return _NO_RANK
