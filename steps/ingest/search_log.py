"""A search log in memory: whole numbers for queries and documents, so that a million impressions stay small."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from steps.core.texts import fold
from steps.ingest.rows import Defect

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


class First(NamedTuple):
    """The first occurrence of a query: earliest, then of the smallest text."""

    timestamp: int
    text: str
    source: str
    line: int


class SearchLog:
    """The impressions of one log, and its distinct queries: texts that fold alike are one query."""

    def __init__(self, max_query_words: int) -> None:
        self.keys: list[str] = []
        self.firsts: list[First] = []
        self._max_query_words = max_query_words
        self._of_key: dict[str, int] = {}
        self._of_text: dict[str, int] = {}
        self._batches: list[pa.RecordBatch] = []

    def query(self, text: str, timestamp: int, source: str, line: int) -> int:
        """The number of a query seen in a row; Defect `empty_text` or `query_too_long`."""
        number = self._of_text.get(text)
        if number is None:
            number = self._of_text[text] = self._number(text)
        if number == len(self.firsts):
            self.firsts.append(First(timestamp, text, source, line))
        elif (timestamp, text) < self.firsts[number][:2]:
            self.firsts[number] = First(timestamp, text, source, line)
        return number

    def _number(self, text: str) -> int:
        key = fold(text)
        if not key:
            raise Defect("empty_text")
        if len(text.split()) > self._max_query_words:
            raise Defect("query_too_long")
        if key not in self._of_key:
            self._of_key[key] = len(self.keys)
            self.keys.append(key)
        return self._of_key[key]

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
