"""A search log in memory: whole numbers for queries and documents, so that a million impressions stay small."""

from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from steps.core.texts import fold
from steps.ingest.rows import Defect, LeftOut
from steps.ingest.source_data import MAX_QUERY_WORDS

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
