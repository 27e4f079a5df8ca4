"""A click log as a table, one row for each document that a search showed, with columns of the user's own names."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from steps.core.files import sha256_text
from steps.core.progress import progress
from steps.ingest.log_corpus import read_corpus
from steps.ingest.log_splits import add_log
from steps.ingest.log_values import as_clicked, as_id, as_rank, as_text
from steps.ingest.params import ClickLogSource
from steps.ingest.rejects import Rejects
from steps.ingest.relevance import QueryNames, log_relevance
from steps.ingest.rows import Defect, Gone
from steps.ingest.search_log import SearchLog
from steps.ingest.source_data import SourceData
from steps.ingest.source_files import table_files
from steps.ingest.table_rows import Row, read_rows
from steps.ingest.times import Window, unix_seconds

_BATCH_ROWS = 65_536


class _Impression(NamedTuple):
    session: str
    query: int
    document: int
    rank: int
    clicked: bool
    timestamp: int


def read_click_log(
    source: ClickLogSource,
    *,
    key: str,
    window: Window,
    seed: int,
    max_query_words: int,
    max_reject_ratio: float,
    rejects: Rejects,
) -> SourceData:
    """Read a click log, its corpus and its relevance table; `key` is where params.yaml names the source.

    Raises UserError for a missing file or column, a log without test queries, or too many defect rows.
    """
    documents = read_corpus(
        source.name, source.corpus, source.corpus_columns, key=key, max_reject_ratio=max_reject_ratio, rejects=rejects
    )
    data = SourceData(source.name, documents=list(documents.values()))
    reader = _Reader(source, key, window, {original: number for number, original in enumerate(documents)})
    log, names = SearchLog(max_query_words), QueryNames()
    read: list[str] = []
    for file in table_files(source.path, f"{key}.path", window):
        name = f"{source.name}/path/{file.name}"
        read.append(name)
        rows = read_rows(file.path, wanted=reader.wanted, source=name, rejects=rejects)
        reader.read(rejects.watched(rows, name, file.path, max_reject_ratio), name, log, names, rejects)
        rejects.check(name, file.path, max_reject_ratio)
    rejects.check_log(read, f"params.yaml: {key}.path, {source.path}", others=reader.outside)
    data.facts["impressions_left_out"] = {"outside_window": reader.outside}
    add_log(data, log, source, seed=seed, key=key, rejects=rejects)
    data.relevance = log_relevance(
        source, log, names, documents, key=key, facts=data.facts, max_reject_ratio=max_reject_ratio, rejects=rejects
    )
    return data


class _Reader:
    """Turns the rows of a source's files into impressions."""

    def __init__(self, source: ClickLogSource, key: str, window: Window, documents: Mapping[str, int]) -> None:
        self.name, self.columns, self.window, self.documents = source.name, source.columns, window, documents
        self.outside = 0
        self.needs_names = bool(source.relevance)
        mapped = {ours: theirs for ours, theirs in source.columns.model_dump().items() if theirs}
        self.wanted = {theirs: f"{key}.columns.{ours}" for ours, theirs in mapped.items()}

    def read(self, rows: Iterable[Row], source: str, log: SearchLog, names: QueryNames, rejects: Rejects) -> None:
        """Add the impressions of a file's rows to the log, and what it calls its queries to the names."""
        batch: list[_Impression] = []
        for row in progress(rows, None, f"impressions of {source}"):
            try:
                impression = self._impression(row, source, log, names)
            except Defect as defect:
                rejects.add_of_log(source, row.line, defect, row.raw())
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

    def _impression(self, row: Row, source: str, log: SearchLog, names: QueryNames) -> _Impression | None:
        """The impression of a row; None outside the window."""
        get, columns = row.values.get, self.columns
        timestamp = unix_seconds(get(columns.timestamp))
        if not self.window.holds(timestamp):
            return None
        document = self.documents.get(as_id(get(columns.doc_id)))
        if document is None:
            raise Gone("unknown_document")
        rank, clicked = as_rank(get(columns.rank)), as_clicked(get(columns.clicked))
        text = as_text(get(columns.query))
        session = as_id(get(columns.session_id)) if columns.session_id else ""
        original = as_id(get(columns.query_id)) if columns.query_id else ""
        query = log.query(text, timestamp, source, row.line)
        if original and self.needs_names:
            names.add(original, query)
        session = session or f"{sha256_text(log.keys[query])[:16]}@{timestamp}"
        return _Impression(f"{self.name}/{session}", query, document, rank, clicked, timestamp)


def _add(log: SearchLog, batch: list[_Impression]) -> None:
    sessions, *columns = zip(*batch, strict=True)
    log.add(pa.array(sessions, pa.string()), *columns)
