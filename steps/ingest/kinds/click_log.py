"""A click log as a table, one row for each document that a search showed, with columns of the user's own names."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from slimtower.common.files import sha256_text
from slimtower.common.settings import Strict
from steps.ingest.batches import Batch, Column, Parsed
from steps.ingest.coded_columns import coded
from steps.ingest.rejects import Clicks
from steps.ingest.relevance import AMBIGUOUS, log_relevance
from steps.ingest.rows import Defect, MissingTarget
from steps.ingest.search_log import SearchLog, Tables, add_log, read_corpus
from steps.ingest.source import Location, LogSource, Name, ReadContext, SourceData
from steps.ingest.times import Window, unix_time
from steps.ingest.values import Ids, Reading, as_id, as_query, detect_blank, detect_rank_from, unwrapped

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
        reader.add_all(tables.batches(reader.required))
        tables.check_log(other_rows=reader.outside)
        reader.clicks.check(tables.subject, "give the corpus of this log, or mend its doc_id")
        data.facts["impressions_left_out"] = {"outside_window": reader.outside}
        add_log(data, reader.log, self, context, has_sessions=bool(self.columns.session_id))
        data.relevance = log_relevance(self, context, reader.log, reader.query_numbers, documents, data.facts)
        return data


class _Reader:
    """Turns batches of rows of a source's files into impressions."""

    def __init__(self, source: ClickLogSource, context: ReadContext, documents: Mapping[str, int]) -> None:
        self.source, self.columns, self.documents = source, source.columns, documents
        self.window, self.rejects = context.window, context.rejects
        self.log = SearchLog()
        self.query_numbers: dict[str, int] = {}  # by the log's own id, or AMBIGUOUS
        self.ids, self.clicks, self.reading = Ids(documents), Clicks(), Reading()
        self.outside = 0
        self.mapped = {ours: theirs for ours, theirs in source.columns.model_dump().items() if theirs}
        self.required = {theirs: f"{context.key}.columns.{ours}" for ours, theirs in self.mapped.items()}

    def add_all(self, batches: Iterator[tuple[str, Batch]]) -> None:
        """Add the impressions of all files' rows to the log."""
        probed = _first_batches(batches)
        self.reading = self._detect_reading([batch for _, batch in probed])
        while probed:
            self._add(*probed.popleft())
        for name, batch in batches:
            self._add(name, batch)

    def _detect_reading(self, batches: list[Batch]) -> Reading:
        """How the log spells its values, by its settings and first rows."""
        source = self.source
        clicked, passed = frozenset(source.clicked.true), frozenset(source.clicked.false)
        detected = detect_rank_from(_first_values(batches, self.columns.rank))
        rank_from = detected if source.rank_from is None else source.rank_from
        blank = not clicked | passed and detect_blank(_first_values(batches, self.columns.clicked))
        if rank_from == 0 and source.rank_from is None:
            print(f"ingest: {source.name}: ranks begin with 0 (else set rank_from: 1)", file=sys.stderr)
        if blank:
            print(
                f'ingest: {source.name}: no value says "not clicked", so a blank does (else set clicked)',
                file=sys.stderr,
            )
        return Reading(rank_from, clicked, passed, blank)

    def _parsers(self) -> dict[str, Callable[[Any], Any]]:
        """What reads the values of each field, in the order in which a row's defects count."""
        form = self.source.timestamp
        return {
            "timestamp": lambda value: int(unix_time(unwrapped(value), form)),
            "query": as_query,
            "clicked": self.reading.is_clicked,
            "doc_id": self._document,
            "rank": self.reading.rank,
            "session_id": as_id,
            "query_id": as_id,
        }

    def _document(self, value: Any) -> int:
        """The number of a document by its id as it is spelled; Defect, MissingTarget if the corpus lacks it."""
        if type(value) is str and (number := self.documents.get(value)) is not None:
            return number
        key = self.ids.find(as_id(value))
        if key is None:
            raise MissingTarget("unknown_document")
        return self.documents[key]

    def _add(self, name: str, batch: Batch) -> None:
        """Add a batch of a file's rows: those outside the window do not count, those with a defect are rejected."""
        fields = {
            field: batch.columns[self.mapped[field]].parsed(parse)
            for field, parse in self._parsers().items()
            if field in self.mapped
        }
        times, clicked = fields["timestamp"].array(np.int64), fields["clicked"].array(bool)
        outside = fields["timestamp"].is_ok & ~((self.window.start <= times) & (times < self.window.end))
        self.outside += int(outside.sum())
        searches = ~outside & fields["timestamp"].is_ok & fields["query"].is_ok & fields["clicked"].is_ok
        self._count_clicks(searches & clicked, fields["doc_id"], batch.columns[self.columns.doc_id])
        is_ok = ~outside & np.logical_and.reduce([field.is_ok for field in fields.values()])
        fields["number"] = self._numbered(fields["query"], is_ok)
        is_used = is_ok & fields["number"].is_ok
        for at in np.flatnonzero(~outside & ~is_used).tolist():
            row = batch.row(at)
            defects = (field.defects.get(field.codes[at]) for field in fields.values())
            self.rejects.add_defect(name, row.line, next(filter(None, defects)), row.raw)
        rows = np.flatnonzero(is_used)
        if not len(rows):
            return
        used = {field: column._replace(codes=column.codes[rows]) for field, column in fields.items()}
        query, times = used["number"].array(np.int32), times[rows]
        self._note(name, query, used["query"], times, batch.lines[rows])
        if self.source.relevance and "query_id" in used:
            self._note_ids(used["query_id"], used["number"])
        document, rank = used["doc_id"].array(np.int32), used["rank"].array(np.int32)
        self.log.add(self._sessions(used, query, times), query, document, rank, clicked[rows], times)

    def _count_clicks(self, clicked: np.ndarray, document: Parsed, originals: Column) -> None:
        """Count the clicks among these rows on what is a document's id, and those on none of the corpus as lost."""
        missing = [number for number, defect in document.defects.items() if isinstance(defect, MissingTarget)]
        is_lost = np.isin(document.codes, missing)
        self.clicks.total += int((clicked & (document.is_ok | is_lost)).sum())
        lost = np.flatnonzero(clicked & is_lost)
        if len(lost):
            self.clicks.lose(f"one on {as_id(originals[lost[0]])!r}, which the corpus lacks", len(lost))

    def _numbered(self, query: Parsed, is_ok: np.ndarray) -> Parsed:
        """Numbers of the queries of these rows, in the order in which they occur; a text without a word is a defect."""
        codes = query.codes[is_ok]
        numbers, defects = list[int | None]([None] * len(query.values)), dict[int, Defect]()
        for code in codes[np.sort(np.unique(codes, return_index=True)[1])].tolist():
            try:
                numbers[code] = self.log.number(query.values[code])
            except Defect as defect:
                defects[code] = defect.untraced()
        return Parsed(numbers, defects, query.codes)

    def _note(self, name: str, numbers: np.ndarray, query: Parsed, times: np.ndarray, lines: np.ndarray) -> None:
        """Note where each query of these rows was seen first: the earliest, then of the smallest text."""
        texts = [query.values[code] for code in np.unique(query.codes).tolist()]
        order = {text: at for at, text in enumerate(sorted(texts))}
        rows = np.lexsort(
            (query._replace(values=[order.get(text) for text in query.values]).array(int), times, numbers)
        )
        for at in rows[np.diff(numbers[rows], prepend=-1) > 0].tolist():
            text = query.values[query.codes[at]]
            self.log.note(int(numbers[at]), text, int(times[at]), name, int(lines[at]))

    def _note_ids(self, query_id: Parsed, number: Parsed) -> None:
        """Note which query has which id of the log's own."""
        pairs = np.unique(query_id.codes.astype(np.int64) * len(number.values) + number.codes)
        for id_code, code in zip(*(part.tolist() for part in np.divmod(pairs, len(number.values))), strict=True):
            query = number.values[code]
            if self.query_numbers.setdefault(query_id.values[id_code], query) != query:
                self.query_numbers[query_id.values[id_code]] = AMBIGUOUS

    def _sessions(self, fields: Mapping[str, Parsed], query: np.ndarray, times: np.ndarray) -> pa.DictionaryArray:
        """Each row's session: the log's own, else the query at its time."""
        if "session_id" in fields:
            names, codes = fields["session_id"].values, fields["session_id"].codes
        else:
            moments, of_rows = np.unique(times, return_inverse=True)
            searches, codes = np.unique(query.astype(np.int64) * len(moments) + of_rows, return_inverse=True)
            digests = {number: sha256_text(self.log.keys[number])[:16] for number in np.unique(query).tolist()}
            numbers_of, moments_of = np.divmod(searches, len(moments))
            names = [
                f"{digests[number]}@{moment}"
                for number, moment in zip(numbers_of.tolist(), moments[moments_of].tolist(), strict=True)
            ]
        numbers: dict[str, int] = {}
        of_names = np.zeros(len(names), dtype=np.int32)
        for code in np.unique(codes).tolist():  # two spellings may be one session
            of_names[code] = numbers.setdefault(f"{self.source.name}/{names[code]}", len(numbers))
        return coded(of_names[codes], pa.array(list(numbers), pa.string()))


def _first_batches(batches: Iterator[tuple[str, Batch]]) -> deque[tuple[str, Batch]]:
    """As many as have the log's first rows."""
    probed, count = deque[tuple[str, Batch]](), 0
    for name, batch in batches:
        probed.append((name, batch))
        count += len(batch.lines)
        if count >= PROBED_ROWS:
            break
    return probed


def _first_values(batches: Sequence[Batch], column: str) -> list[Any]:
    """The column's values in the log's first rows."""
    values = chain.from_iterable(map(batch.columns[column].__getitem__, range(len(batch.lines))) for batch in batches)
    return list(islice(values, PROBED_ROWS))
