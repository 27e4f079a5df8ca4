"""A search log: the tables of its source, and its impressions in memory.

Queries and documents are whole numbers there, so that a million impressions stay small.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.core.texts import fold
from steps.ingest.locations import table_files
from steps.ingest.rows import Defect, LeftOut, one_word
from steps.ingest.source import MAX_QUERY_WORDS, Document, LogSource, ReadContext, ScoredSource
from steps.ingest.splits import JudgedRows
from steps.ingest.table_rows import Gaps, Row, read_rows
from steps.ingest.times import ALWAYS, Window
from steps.ingest.values import as_id, text_field

SESSIONS = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        ("session", SESSIONS),
        ("query", pa.int32()),
        ("document", pa.int32()),
        ("rank", pa.int32()),
        ("clicked", pa.bool_()),
        ("timestamp", pa.int64()),
    ]
)


class Tables:
    """The files of a field of params.yaml, such as `corpus`; their rows, and whether enough of them are of use."""

    def __init__(self, source: ScoredSource, field: str, context: ReadContext, window: Window = ALWAYS) -> None:
        self.place: str = getattr(source, field)
        self.form, self.rejects = source.form, context.rejects
        self.name, self.subject = f"{source.name}/{field}", f"params.yaml: {context.key}.{field}, {self.place}"
        files = table_files(self.place, f"{context.key}.{field}", window)
        self.files = {f"{self.name}/{file.name}": file.path for file in files}

    def rows(
        self, required: Mapping[str, str], optional: Collection[str] = (), gap: str = ""
    ) -> Iterator[tuple[str, Row]]:
        """Rows as of `read_rows`, each with its file's name; of several small files some may lack the column `gap`."""
        gaps = Gaps(gap) if gap and len(self.files) > 1 else None
        for name, path in self.files.items():
            rows = read_rows(
                path,
                required=required,
                optional=optional,
                source=name,
                rejects=self.rejects,
                gaps=gaps,
                form=self.form,
            )
            yield from ((name, row) for row in progress(self.rejects.watched(rows, name, path), None, name))
        if gaps:
            gaps.check(required)

    def check(self, *, has_settings: bool = True) -> None:
        """UserError where too many rows are defect; `has_settings`: the source has knobs of how its files spell."""
        self.rejects.check(self.name, self.place, has_settings=has_settings)

    def check_log(self, other_rows: int) -> None:
        """The same, and where most rows, `other_rows` not counted, are about what is not there."""
        self.check()
        self.rejects.check_log(list(self.files), self.subject, other_rows)


def read_corpus(source: LogSource, context: ReadContext) -> dict[str, Document]:
    """Documents by their original id.

    Raises UserError for a missing file or column, an empty corpus or too many defect rows.
    """
    key, columns = context.key, source.corpus_columns
    named = {"doc_id", "content"} | columns.model_fields_set
    required = {getattr(columns, ours): f"{key}.corpus_columns.{ours}" for ours in sorted(named)}
    corpus, tables = JudgedRows(source.name), Tables(source, "corpus", context)
    for name, row in tables.rows(required, {columns.title, columns.topic}, gap=columns.content):
        with context.rejects.guard(name, row.line, row.raw):
            doc_id = one_word(as_id(row.values.get(columns.doc_id)))
            title, topic = (text_field(row.values, column, optional=True) for column in (columns.title, columns.topic))
            content = text_field(row.values, columns.content, optional=bool(title))  # a product may have a title alone
            corpus.add_document(doc_id, title, content, topic)
    tables.check()
    if not corpus.documents:
        raise UserError(f"params.yaml: {key}.corpus: {source.corpus!r} holds no document; name another place")
    return corpus.documents


class SearchLog:
    """The impressions of one log, and its distinct queries: texts that fold alike are one query.

    `keys` are the folded texts of the queries by number, `first_times` when each was first seen.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.first_times = array("q")
        self._first_texts: list[str] = []
        self._first_sources, self._first_lines = array("i"), array("q")
        self._sources: list[str] = []  # the last is the one being read

        self._of_key: dict[str, int] = {}
        self._of_text: dict[str, int] = {}
        self._batches: list[pa.RecordBatch] = []

    def query(self, text: str, timestamp: int, source: str, line: int) -> int:
        """The number of a query seen in a row; Defect as in `folded`."""
        number = self._of_text.get(text)
        if number is None:
            number = self._of_text[text] = self._number(text)
        if not self._sources or source != self._sources[-1]:
            self._sources.append(source)
        if number == len(self.first_times):
            self.first_times.append(timestamp)
            self._first_texts.append(text)
            self._first_sources.append(len(self._sources) - 1)
            self._first_lines.append(line)
        elif (timestamp, text) < (self.first_times[number], self._first_texts[number]):
            self.first_times[number], self._first_texts[number] = timestamp, text
            self._first_sources[number], self._first_lines[number] = len(self._sources) - 1, line
        return number

    def first(self, number: int) -> tuple[str, str, int]:
        """Text, source and line of the first occurrence of a query: the earliest, then of the smallest text."""
        return self._first_texts[number], self._sources[self._first_sources[number]], self._first_lines[number]

    def folded(self, text: str) -> str:
        """A query's text as its key; Defect `empty_text` or `query_too_long`."""
        key = fold(text)
        if not key:
            raise Defect("empty_text")
        if len(text.split()) > MAX_QUERY_WORDS:
            raise LeftOut("query_too_long")
        return text if key == text else key  # one string in memory, not two

    def _number(self, text: str) -> int:
        key = self.folded(text)
        number = self._of_key.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def add(
        self,
        sessions: pa.Array,
        queries: Sequence[int] | np.ndarray,
        documents: Sequence[int] | np.ndarray,
        ranks: Sequence[int] | np.ndarray,
        clicked: Sequence[bool] | np.ndarray,
        timestamps: Sequence[int] | np.ndarray,
    ) -> None:
        """Add a batch of impressions; `sessions` are globally unique ids, strings or a dictionary of them."""
        coded = sessions if pa.types.is_dictionary(sessions.type) else sessions.dictionary_encode()
        columns = [
            pa.array(values, field.type)
            for values, field in zip((queries, documents, ranks, clicked, timestamps), list(_SCHEMA)[1:], strict=True)
        ]
        self._batches.append(pa.record_batch([coded, *columns], schema=_SCHEMA))

    def table(self) -> pa.Table:
        """All impressions as (session, query, document, rank, clicked, timestamp) in the order of their adding."""
        return pa.Table.from_batches(self._batches, schema=_SCHEMA)
