"""The events of a UBI log (index `ubi_events`): clicks, and what searches without hits showed."""

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from steps.core.progress import progress
from steps.ingest.log_values import as_id, as_rank
from steps.ingest.params import UbiSource
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, Gone, json_value
from steps.ingest.source_files import table_files
from steps.ingest.table_rows import Row, read_rows
from steps.ingest.times import Window, unix_seconds
from steps.ingest.ubi_searches import AFTER, BEFORE, Searches

IMPRESSION_ACTIONS = frozenset({"impression", "view"})
SESSION_SECONDS = 24 * 3600  # so long after its search an event may come
_NEVER_SHOWN = "click_without_impression"


class Shown(NamedTuple):
    """What the searches showed, sorted by search and rank: arrays of one length."""

    searches: np.ndarray
    documents: np.ndarray
    ranks: np.ndarray
    clicked: np.ndarray


def read_events(
    source: UbiSource,
    searches: Searches,
    documents: Mapping[str, int],
    *,
    key: str,
    window: Window,
    max_reject_ratio: float,
    rejects: Rejects,
) -> tuple[Shown, dict[str, int]]:
    """What was shown and clicked, and how many events were left out, by reason.

    An event at or after `test_from` says nothing about a search before it. What such a search showed and was clicked
    only then is left out: it is no document that nobody clicked. An event of the window's first day may
    belong to a search before the window, whose partition is not read; those up to SESSION_SECONDS after the window
    are read, for the searches inside. Raises UserError for a missing file or column or too many defect rows.
    """
    reader = _Reader(source, searches, documents, window)
    files = table_files(source.events, f"{key}.events", window.longer(SESSION_SECONDS))
    wanted = dict.fromkeys(("action_name", "timestamp"), f"{key}.events")
    for file in files:
        name = f"{source.name}/events/{file.name}"
        reader.files.append(name)
        rows = read_rows(
            file.path, wanted=wanted, optional=["query_id", "event_attributes"], source=name, rejects=rejects
        )
        rows = rejects.watched(rows, name, file.path, max_reject_ratio)
        for row in progress(rows, None, f"events of {name}"):
            try:
                reader.read(row)
            except Defect as defect:
                rejects.add_of_log(name, row.line, defect, row.raw())
    shown = reader.shown(rejects)
    for file in files:
        rejects.check(f"{source.name}/events/{file.name}", file.path, max_reject_ratio)
    others = sum(reader.left_out.values())
    rejects.check_log(reader.files, f"params.yaml: {key}.events, {source.events}", others=others)
    return shown, dict(sorted(reader.left_out.items()))


class _Reader:
    def __init__(self, source: UbiSource, searches: Searches, documents: Mapping[str, int], window: Window) -> None:
        self.searches, self.documents = searches, documents
        self.window, self.longer = window, window.longer(SESSION_SECONDS)
        self.click_actions = frozenset(source.click_actions)
        self.actions = IMPRESSION_ACTIONS | self.click_actions
        self.cut = source.cut
        told = ("clicks_after_test_from", "impressions_after_test_from", "not_of_a_search", "outside_window")
        self.left_out = Counter(dict.fromkeys(told, 0))
        self.clicked = bytearray(len(searches.documents))
        self.pairs, self.ranks = array("q"), array("i")
        self.late_clicks = array("q")  # pairs
        self.files: list[str] = []  # the last is the one being read
        # Clicks whose impression is known only when all events are read: what, and where it was read.
        self.click_pairs, self.click_files, self.click_lines = array("q"), array("i"), array("q")

    def read(self, row: Row) -> None:
        """Take one event in; Defect when it is one that counts and cannot be used."""
        action, search_id = row.values.get("action_name"), row.values.get("query_id")
        if not isinstance(action, str | None):
            raise Defect("wrong_type")
        if action not in self.actions or search_id is None or search_id == "":
            self.left_out["not_of_a_search"] += 1
            return
        is_click = action in self.click_actions
        timestamp = unix_seconds(row.values.get("timestamp"))
        search = self.searches.numbers.get(as_id(search_id))
        inside = self.window if search is None else self.longer
        if search in (AFTER, BEFORE) or not inside.holds(timestamp):
            self.left_out["outside_window"] += 1
            return
        if search is None and timestamp < self.window.start + SESSION_SECONDS:
            self.left_out["unknown_search"] += 1
            return
        if search is None:
            raise Gone(_NEVER_SHOWN if is_click else "unknown_query")
        if search < 0:
            self.left_out["of_unusable_searches"] += 1
            return
        original, ordinal = _object(row.values.get("event_attributes"))
        document = self.documents.get(original)
        if document is None:
            raise Gone("unknown_document")
        start, end = self.searches.starts[search], self.searches.starts[search + 1]
        pair = search * len(self.documents) + document
        late = self.searches.times[search] < self.cut <= timestamp
        if not is_click:
            if late:
                self.left_out["impressions_after_test_from"] += 1
            elif start == end:
                rank = as_rank(ordinal)
                self.pairs.append(pair)
                self.ranks.append(rank)
        elif late:
            self.left_out["clicks_after_test_from"] += 1
            self.late_clicks.append(pair)
        elif start == end:
            self.click_pairs.append(pair)
            self.click_files.append(len(self.files) - 1)
            self.click_lines.append(row.line)
        else:
            try:
                place = start + self.searches.documents[start:end].index(document)
            except ValueError:
                raise Gone(_NEVER_SHOWN) from None
            self.clicked[place] = 1

    def shown(self, rejects: Rejects) -> Shown:
        """Everything that was shown; clicks on what was not become rejects."""
        searches, width = self.searches, max(len(self.documents), 1)
        by_hits = np.repeat(np.arange(len(searches.ids)), np.diff(np.array(searches.starts)))
        pairs, ranks = np.array(self.pairs, dtype=np.int64), np.array(self.ranks, dtype=np.int32)
        order = np.lexsort((ranks, pairs))
        pairs, at = np.unique(pairs[order], return_index=True)  # of several events the one of the lowest ordinal
        ranks = ranks[order][at]
        wanted = np.array(self.click_pairs, dtype=np.int64)
        originals = list(self.documents)
        for place in np.flatnonzero(~np.isin(wanted, pairs)).tolist():
            search, document = divmod(self.click_pairs[place], width)
            raw = json.dumps({"query_id": searches.ids[search], "object_id": originals[document]}, ensure_ascii=False)
            rejects.add_of_log(self.files[self.click_files[place]], self.click_lines[place], Gone(_NEVER_SHOWN), raw)
        columns = Shown(
            np.concatenate([by_hits, pairs // width]),
            np.concatenate([np.array(searches.documents, dtype=np.int64), pairs % width]),
            np.concatenate([np.array(searches.ranks, dtype=np.int32), ranks]),
            np.concatenate([np.frombuffer(self.clicked, dtype=np.bool_), np.isin(pairs, wanted)]),
        )
        late = ~columns.clicked & np.isin(columns.searches * width + columns.documents, self.late_clicks)
        searches.impressions_late += int(late.sum())
        order = np.lexsort((columns.ranks, columns.searches))
        order = order[~late[order]]
        return Shown(*(column[order] for column in columns))


def _object(attributes: Any) -> tuple[str, Any]:
    """The object's id and its ordinal (None where the event has none) of `event_attributes`, a mapping or its JSON."""
    if isinstance(attributes, str) and attributes:
        attributes = json_value(attributes, "wrong_type")
    if not isinstance(attributes, dict):
        raise Defect("missing_field" if attributes is None or attributes == "" else "wrong_type")
    thing, position = attributes.get("object"), attributes.get("position")
    if not isinstance(thing, dict):
        raise Defect("missing_field" if thing is None else "wrong_type")
    return as_id(thing.get("object_id")), position.get("ordinal") if isinstance(position, dict) else None
