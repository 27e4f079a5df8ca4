"""A click log as a table, one row for each document that a search showed, with columns of the user's own names."""

import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field, model_validator

from slimtower.common.files import sha256_text
from slimtower.common.settings import Strict
from steps.ingest.rejects import Clicks
from steps.ingest.relevance import AMBIGUOUS, log_relevance
from steps.ingest.rows import MissingTarget
from steps.ingest.search_log import SearchLog, Tables, add_log, read_corpus
from steps.ingest.source import Location, LogSource, Name, ReadContext, SourceData
from steps.ingest.table_rows import Row
from steps.ingest.times import Window, unix_time
from steps.ingest.values import Ids, Reading, as_id, as_query, detect_blank, detect_rank_from, unwrapped

_BATCH_ROWS = 65_536
PROBED_ROWS = 10_000  # of a log: they tell how it spells what could be mistaken


class ClickedValues(Strict):
    """Which values of `clicked` say what; with one list alone, every other value says the opposite."""

    true: list[str] = Field(default=[])
    """Values of a click, such as [Y]; [] and no `false` = true, t, yes, y and 1."""
    false: list[str] = Field(default=[])
    """Values of none, "" for a blank; ["", 0] alone makes every number, or time, of a click one."""

    @model_validator(mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """YAML reads the keys, and yes and no, as booleans, and digits as numbers: all are texts here."""
        if not isinstance(value, dict):
            return value
        return {
            str(key).lower() if isinstance(key, bool) else key: [
                text for value_text in listed for text in _spellings(value_text)
            ] if isinstance(listed, list) else listed
            for key, listed in value.items()
        }  # fmt: skip


def _spellings(value: Any) -> list[str]:
    if isinstance(value, bool):
        return ["yes", "true"] if value else ["no", "false"]
    return ["" if value is None else str(value).strip().lower()]


class LogColumns(Strict):
    """What a click log calls its columns; without `session_id`, each query at each time is a session."""

    query: Name
    """Column of the text that was searched for."""
    doc_id: Name
    """Column of the document's id, one of the corpus."""
    rank: Name
    """Column of the rank; 1 = the first result, or 0 where it is as frequent."""
    clicked: Name
    """Column that says whether it was clicked: true/false, yes/no, t/f, y/n or 1/0."""
    timestamp: Name
    """Column of the time: ISO 8601 (UTC if it names no zone), a date with its month's name, or unix seconds, milli-,
    micro- or nanoseconds.
    """
    session_id: str = ""
    """Column of the session; "" = each query at each time is a session."""
    query_id: str = ""
    """Column of the query's id, where a relevance table names queries by id; "" = none."""


class ClickLogSource(LogSource):
    """A table of impressions: one row for each document that a search showed."""

    kind: Literal["click_log"]
    """A table of impressions; see recipes/click_log.yaml."""
    path: Name
    """Folder or file of the impressions, by day (`dt=2026-01-31/`) where they are large; local or s3://."""
    columns: LogColumns
    """What the table calls its columns."""
    clicked: ClickedValues = ClickedValues()
    """Which values say that a result was clicked, if not true, t, yes, y or 1."""

    def locations(self, key: str, window: Window) -> Iterator[Location]:
        return self.log_locations(key, path=(self.path, window))

    def read(self, context: ReadContext) -> SourceData:
        """Read the log, its corpus and its relevance table.

        Raises UserError for a missing file or column, a log without test queries, or too many defect rows.
        """
        documents = read_corpus(self, context)
        data = SourceData(self.name, documents=list(documents.values()))
        reader = _Reader(self, context, {original: number for number, original in enumerate(documents)})
        tables = Tables(self, "path", context, context.window)
        reader.add_rows(tables.rows(reader.required))
        tables.check_log(other_rows=reader.outside)
        reader.clicks.check(tables.subject, "give the corpus of this log, or mend its doc_id")
        data.facts["impressions_left_out"] = {"outside_window": reader.outside}
        add_log(data, reader.log, self, context, has_sessions=bool(self.columns.session_id))
        data.relevance = log_relevance(self, context, reader.log, reader.query_numbers, documents, data.facts)
        return data


class _Impression(NamedTuple):
    session: str
    query: int
    document: int
    rank: int
    clicked: bool
    timestamp: int


class _Reader:
    """Turns the rows of a source's files into impressions."""

    def __init__(self, source: ClickLogSource, context: ReadContext, documents: Mapping[str, int]) -> None:
        self.source, self.columns, self.documents = source, source.columns, documents
        self.window, self.rejects = context.window, context.rejects
        self.log = SearchLog()
        self.query_numbers: dict[str, int] = {}  # by the log's own id, or AMBIGUOUS
        self.ids, self.clicks, self.reading = Ids(documents), Clicks(), Reading()
        self.outside = 0
        mapped = {ours: theirs for ours, theirs in source.columns.model_dump().items() if theirs}
        self.required = {theirs: f"{context.key}.columns.{ours}" for ours, theirs in mapped.items()}

    def add_rows(self, rows: Iterator[tuple[str, Row]]) -> None:
        """Add the impressions of all files' rows to the log."""
        probed = list(islice(rows, PROBED_ROWS))
        self.reading = self._detect_reading([row for _, row in probed])
        batch: list[_Impression] = []
        for name, row in chain(probed, rows):
            with self.rejects.guard(name, row.line, row.raw):
                if impression := self._impression(row, name):
                    batch.append(impression)
                else:
                    self.outside += 1
            if len(batch) == _BATCH_ROWS:
                self._add(batch)
                batch = []
        if batch:
            self._add(batch)

    def _add(self, batch: list[_Impression]) -> None:
        sessions, *columns = zip(*batch, strict=True)
        self.log.add(pa.array(sessions, pa.string()), *columns)

    def _detect_reading(self, rows: list[Row]) -> Reading:
        """How the log spells its values, by its settings and first rows."""
        source = self.source
        clicked, passed = frozenset(source.clicked.true), frozenset(source.clicked.false)
        detected = detect_rank_from(row.values.get(self.columns.rank) for row in rows)
        rank_from = detected if source.rank_from is None else source.rank_from
        blank = not clicked | passed and detect_blank([row.values.get(self.columns.clicked) for row in rows])
        if rank_from == 0 and source.rank_from is None:
            print(f"ingest: {source.name}: ranks begin with 0 (else set rank_from: 1)", file=sys.stderr)
        if blank:
            print(
                f'ingest: {source.name}: no value says "not clicked", so a blank does (else set clicked)',
                file=sys.stderr,
            )
        return Reading(rank_from, clicked, passed, blank)

    def _impression(self, row: Row, source: str) -> _Impression | None:
        """The impression of a row; None outside the window."""
        get, columns, reading = row.values.get, self.columns, self.reading
        timestamp = int(unix_time(unwrapped(get(columns.timestamp)), self.source.timestamp))
        if not self.window.holds(timestamp):
            return None
        text = as_query(get(columns.query))
        clicked = reading.is_clicked(get(columns.clicked))
        original = as_id(get(columns.doc_id))
        key = self.ids.find(original)
        self.clicks.total += clicked
        if key is None:
            if clicked:
                self.clicks.lose(f"one on {original!r}, which the corpus lacks")
            raise MissingTarget("unknown_document")
        rank = reading.rank(get(columns.rank))
        session = as_id(get(columns.session_id)) if columns.session_id else ""
        name = as_id(get(columns.query_id)) if columns.query_id else ""
        query = self.log.query(text, timestamp, source, row.line)
        if name and self.source.relevance and self.query_numbers.setdefault(name, query) != query:
            self.query_numbers[name] = AMBIGUOUS
        session = session or f"{sha256_text(self.log.keys[query])[:16]}@{timestamp}"
        return _Impression(f"{self.source.name}/{session}", query, self.documents[key], rank, clicked, timestamp)
