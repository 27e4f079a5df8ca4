"""The documents themselves, beside the releases or where `--corpus` says: snippets, whole texts, and BM25's texts."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.document_texts import template_of
from slimtower.common.errors import UserError, line
from slimtower.common.files import cache_root, read_columns, sha256_text
from slimtower.service.log_store import log_store
from slimtower.service.telemetry import LOGGER
from slimtower.serving.display import snippet

_NAME = "corpus.parquet"
_SNIPPET = 220  # characters


class Document(NamedTuple):
    doc_id: str
    dataset: str
    title: str
    topic: str
    content: str


class Corpus:
    """The table `corpus` of a folder, read on first use and again when it has changed."""

    def __init__(self, location: str, max_mb: int) -> None:
        """A folder or s3:// prefix; empty: none. A file above `max_mb`, or that cannot be read, counts as none."""
        self._location, self._max_bytes = location, max_mb << 20
        self.locate()
        self._lock = threading.Lock()
        self._state: object = None
        self._broken: object = None  # the state of a file that cannot be read
        self._table: pa.Table | None = None
        self._rows: dict[str, int] = {}

    def locate(self) -> None:
        """Find the file; on s3 another one may lie there by now. UserError or TransientError if s3 has none."""
        self.path = _file(self._location) if self._location else None

    def state(self) -> object:
        """What tells one corpus from another; None if there is none."""
        if self.path is None:
            return None
        try:
            stat = self.path.stat()
        except OSError:
            return None
        state = stat.st_ino, stat.st_mtime_ns, stat.st_size
        return state if stat.st_size <= self._max_bytes and state != self._broken else None

    def snippets(self, query: str, ids: Sequence[str]) -> list[str]:
        """Of each document's content the part that fits the query; empty for a document that is not there."""
        documents = [self.document(doc_id) for doc_id in ids]
        return [snippet(document.content, query, _SNIPPET) if document else "" for document in documents]

    def document(self, doc_id: str) -> Document | None:
        """One document; None for an unknown one, and without a corpus."""
        table, rows = self._load()
        row = rows.get(doc_id)
        if table is None or row is None:
            return None
        return Document(*(table[name][row].as_py() for name in Document._fields))

    def documents(self, dataset: str) -> Iterator[Document]:
        table, _ = self._load()
        if table is not None:
            for batch in table.to_batches(1024):
                yield from (Document(**row) for row in batch.filter(pc.field("dataset") == dataset).to_pylist())

    def texts(self, dataset: str) -> tuple[list[str], list[str], list[str]]:
        """Ids, titles, and texts as towers and BM25 read them."""
        table, _ = self._load()
        if table is None:
            return [], [], []
        template, documents = template_of(table.schema), list(self.documents(dataset))
        texts = [template.text(document.title, document.topic, document.content) for document in documents]
        return [document.doc_id for document in documents], [document.title for document in documents], texts

    def _load(self) -> tuple[pa.Table | None, dict[str, int]]:
        with self._lock:
            if (state := self.state()) != self._state:
                self._table, self._rows = None, {}  # both tables at once would take twice the memory
                self._table = self._read(state) if state else None
                ids = self._table["doc_id"].to_pylist() if self._table is not None else []
                self._rows = {doc_id: row for row, doc_id in enumerate(ids)}
                self._state = state
            return self._table, self._rows

    def _read(self, state: object) -> pa.Table | None:
        """What the file holds; if it cannot be read searches go on without it, and the log says why."""
        assert self.path is not None
        try:
            return read_columns(self.path, *Document._fields).combine_chunks()
        except (UserError, OSError, pa.ArrowException) as error:
            self._broken = state
            LOGGER.error("corpus not read", extra={"data": {"error": line(error)[:300]}})
            return None


def _file(location: str) -> Path:
    """The corpus at a location; if that is on s3, it is fetched into the cache, which all processes share."""
    return log_store(location, "corpus").fetch(_NAME, cache_root() / "serve/corpus" / sha256_text(location)[:16])
