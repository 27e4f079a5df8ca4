"""A click log as a table, one row for each document that a search showed, with columns of the user's own names."""

import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

import pyarrow as pa

from slimtower.common.files import sha256_text
from steps.core.progress import progress
from steps.ingest.locations import table_files
from steps.ingest.log_corpus import read_corpus
from steps.ingest.log_splits import add_log
from steps.ingest.params import ClickLogSource
from steps.ingest.rejects import Clicks, Rejects
from steps.ingest.relevance import QueryNames, log_relevance
from steps.ingest.rows import Defect, MissingTarget
from steps.ingest.search_log import SearchLog
from steps.ingest.source_data import SourceData
from steps.ingest.table_rows import Form, Row, read_rows
from steps.ingest.times import Window
from steps.ingest.values import Ids, Reading, as_id, as_query, detect_blank, detect_rank_from

_BATCH_ROWS = 65_536
PROBED_ROWS = 10_000  # of a log: they tell how it spells what could be mistaken


class _Impression(NamedTuple):
    session: str
    query: int
    document: int
    rank: int
    clicked: bool
    timestamp: int


def read_click_log(source: ClickLogSource, *, key: str, window: Window, seed: int, rejects: Rejects) -> SourceData:
    """Read a click log, its corpus and its relevance table; `key` is where params.yaml names the source.

    Raises UserError for a missing file or column, a log without test queries, or too many defect rows.
    """
    form = Form(source.encoding, source.delimiter)
    documents = read_corpus(source.name, source.corpus, source.corpus_columns, key=key, form=form, rejects=rejects)
    data = SourceData(source.name, documents=list(documents.values()))
    reader = _Reader(source, key, window, {original: number for number, original in enumerate(documents)})
    log, names = SearchLog(), QueryNames()
    above = f"{source.name}/path"
    files = {f"{above}/{file.name}": file for file in table_files(source.path, f"{key}.path", window)}

    def rows() -> Iterator[tuple[str, Row]]:
        for name, file in files.items():
            file_rows = read_rows(file.path, required=reader.required, source=name, rejects=rejects, form=form)
            watched = rejects.watched(file_rows, name, file.path)
            yield from ((name, row) for row in progress(watched, None, f"impressions of {name}"))

    reader.add_rows(rows(), log, names, rejects)
    subject = f"params.yaml: {key}.path, {source.path}"
    rejects.check(above, source.path, has_settings=True)
    rejects.check_log(list(files), subject, other_rows=reader.outside)
    reader.clicks.check(subject, "give the corpus of this log, or mend its doc_id")
    data.facts["impressions_left_out"] = {"outside_window": reader.outside}
    add_log(data, log, source, seed=seed, key=key, rejects=rejects)
    data.relevance = log_relevance(source, log, names, documents, key=key, facts=data.facts, rejects=rejects)
    return data


class _Reader:
    """Turns the rows of a source's files into impressions."""

    def __init__(self, source: ClickLogSource, key: str, window: Window, documents: Mapping[str, int]) -> None:
        self.source, self.columns, self.window, self.documents = source, source.columns, window, documents
        self.ids, self.clicks, self.reading = Ids(documents), Clicks(), Reading()
        self.outside = 0
        self.needs_names = bool(source.relevance)
        mapped = {ours: theirs for ours, theirs in source.columns.model_dump().items() if theirs}
        self.required = {theirs: f"{key}.columns.{ours}" for ours, theirs in mapped.items()}

    def add_rows(self, rows: Iterator[tuple[str, Row]], log: SearchLog, names: QueryNames, rejects: Rejects) -> None:
        """Add the impressions of all files' rows to the log, and what it calls its queries to the names."""
        probed = list(islice(rows, PROBED_ROWS))
        self.reading = self._detect_reading([row for _, row in probed])
        batch: list[_Impression] = []
        for name, row in chain(probed, rows):
            try:
                impression = self._impression(row, name, log, names)
            except Defect as defect:
                rejects.add_defect(name, row.line, defect, row.raw())
                continue
            if impression is None:
                self.outside += 1
                continue
            batch.append(impression)
            if len(batch) == _BATCH_ROWS:
                _add(log, batch)
                batch = []
        if batch:
            _add(log, batch)

    def _detect_reading(self, rows: list[Row]) -> Reading:
        """How the log spells its values, by its settings and first rows."""
        source = self.source
        clicked, passed = frozenset(source.clicked.true), frozenset(source.clicked.false)
        detected = detect_rank_from(row.values.get(self.columns.rank) for row in rows)
        rank_from = detected if source.rank_from is None else source.rank_from
        blank = not clicked | passed and detect_blank([row.values.get(self.columns.clicked) for row in rows])
        for is_told, text in (
            (rank_from == 0 and source.rank_from is None, "ranks begin with 0 (else set rank_from: 1)"),
            (blank, 'no value says "not clicked", so a blank does (else set clicked)'),
        ):
            if is_told:
                print(f"ingest: {source.name}: {text}", file=sys.stderr)
        return Reading(rank_from, clicked, passed, blank, source.timestamp)

    def _impression(self, row: Row, source: str, log: SearchLog, names: QueryNames) -> _Impression | None:
        """The impression of a row; None outside the window."""
        get, columns, reading = row.values.get, self.columns, self.reading
        timestamp = int(reading.time(get(columns.timestamp)))
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
        query = log.query(text, timestamp, source, row.line)
        if name and self.needs_names:
            names.add(name, query)
        session = session or f"{sha256_text(log.keys[query])[:16]}@{timestamp}"
        return _Impression(f"{self.source.name}/{session}", query, self.documents[key], rank, clicked, timestamp)


def _add(log: SearchLog, batch: list[_Impression]) -> None:
    sessions, *columns = zip(*batch, strict=True)
    log.add(pa.array(sessions, pa.string()), *columns)
