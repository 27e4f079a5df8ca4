"""The searches of a UBI log (index `ubi_queries`): who asked is ignored, what was asked and shown is kept."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steps.core.params.ingest import UbiSource
from steps.core.progress import progress
from steps.ingest.log_values import as_id, as_text
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect
from steps.ingest.search_log import SearchLog
from steps.ingest.source_files import table_files
from steps.ingest.table_rows import Row, read_rows
from steps.ingest.times import Window, unix_seconds

OUTSIDE, UNUSABLE = -1, -2


@dataclass
class Searches:
    """The searches of a log by number; search n showed `documents[starts[n]:starts[n + 1]]`, empty = not recorded."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Number by query_id; OUTSIDE the window or UNUSABLE where the search is left out."""
    ids: list[str] = field(default_factory=list)
    queries: array = field(default_factory=lambda: array("i"))
    times: array = field(default_factory=lambda: array("q"))
    starts: array = field(default_factory=lambda: array("q", [0]))
    documents: array = field(default_factory=lambda: array("i"))
    ranks: array = field(default_factory=lambda: array("i"))
    impressions_outside: int = 0

    def left_out(self) -> dict[str, int]:
        """How many searches lie outside the window or cannot be used."""
        numbers = list(self.numbers.values())
        return {"outside_window": numbers.count(OUTSIDE), "unusable": numbers.count(UNUSABLE)}


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

    A search without text (browsing) becomes a reject that counts as no defect, as does one delivered twice.
    """
    wanted = dict.fromkeys(("query_id", "user_query", "timestamp"), f"{key}.queries")
    searches = Searches()
    for file in table_files(source.queries, f"{key}.queries", window):
        name = f"{source.name}/queries/{file.name}"
        rows = read_rows(file.path, wanted=wanted, optional=["query_response_hit_ids"], source=name, rejects=rejects)
        for row in progress(rows, None, f"searches of {name}"):
            try:
                search_id = as_id(row.values.get("query_id"))
                if search_id in searches.numbers:
                    rejects.add(name, row.line, "duplicate_id", row.raw(), defect=False)
                    continue
                searches.numbers[search_id] = UNUSABLE
                _add(searches, search_id, row, name, log, documents, window, rejects)
            except Defect as defect:
                rejects.add(name, row.line, defect.reason, row.raw())
        rejects.check(name, file.path, max_reject_ratio)
    return searches


def _add(
    searches: Searches,
    search_id: str,
    row: Row,
    name: str,
    log: SearchLog,
    documents: Mapping[str, int],
    window: Window,
    rejects: Rejects,
) -> None:
    timestamp = unix_seconds(row.values.get("timestamp"))
    hits = _hits(row.values.get("query_response_hit_ids"))
    if not window.holds(timestamp):
        searches.numbers[search_id] = OUTSIDE
        searches.impressions_outside += len(hits)
        return
    text = as_text(row.values.get("user_query") or "")
    if not text:
        rejects.add(name, row.line, "empty_text", row.raw(), defect=False)
        return
    query = log.query(text, timestamp, name, row.line)
    unknown = [hit for hit in hits if hit not in documents]
    if unknown:
        rejects.add(name, row.line, "unknown_document", f"{search_id}: {', '.join(unknown)}")
    searches.numbers[search_id] = len(searches.ids)
    searches.ids.append(search_id)
    searches.queries.append(query)
    searches.times.append(timestamp)
    for rank, hit in enumerate(hits, start=1):
        if (number := documents.get(hit)) is not None:
            searches.documents.append(number)
            searches.ranks.append(rank)
    searches.starts.append(len(searches.documents))


def _hits(value: Any) -> dict[str, None]:
    """The ids that were shown, in order, each once; a string holds them as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Defect("wrong_type") from None
    if value is None:
        return {}
    if not isinstance(value, list):
        raise Defect("wrong_type")
    return dict.fromkeys(map(as_id, value))
