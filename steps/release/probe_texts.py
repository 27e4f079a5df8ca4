"""Texts on which an encoder is recognised, or compared with the student where no dev query is judged."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from steps.core.corpus import corpus_columns
from steps.core.tables import read_table
from steps.core.texts import sentences


def probe_texts(ingest: Path, count: int) -> list[str]:
    """Titles, then first sentences of documents; training queries where there are too few.

    A release is handed on with them: what people typed does not go along where there is another way.
    """
    texts = [*islice(_document_texts(ingest), count)]
    return [*texts, *_first(_training(ingest), count - len(texts))]


def query_texts(ingest: Path, count: int) -> list[str]:
    """The first training queries by id; titles, then first sentences of documents where there are too few."""
    texts = _first(_training(ingest), count)
    return [*texts, *islice(_document_texts(ingest), count - len(texts))]


def sample_texts(ingest: Path, dataset: str, count: int) -> list[str]:
    """Texts like the queries of a data set: its dev, train and unlabelled queries, by id, then titles and sentences."""
    queries, unlabelled = (
        table.filter(pc.equal(table["dataset"], dataset))
        for table in (read_table(ingest, name) for name in ("queries", "unlabelled_queries"))
    )
    texts: list[str] = []
    for source in (*(queries.filter(pc.equal(queries["split"], split)) for split in ("dev", "train")), unlabelled):
        texts += _first(source, count - len(texts))
    return [*texts, *islice(_document_texts(ingest, dataset), count - len(texts))]


def _training(ingest: Path) -> pa.Table:
    queries = read_table(ingest, "queries")
    return queries.filter(pc.equal(queries["split"], "train"))


def _first(queries: pa.Table, count: int) -> list[str]:
    texts: list[str] = queries.sort_by("query_id").slice(0, count)["text"].to_pylist()
    return texts


def _document_texts(ingest: Path, dataset: str | None = None) -> Iterator[str]:
    """Titles of the corpus or of one data set, then first sentences of its documents; read as far as needed."""
    for name, title in corpus_columns(ingest, ["dataset", "title"]):
        if title and dataset in (None, name):
            yield title
    for name, content in corpus_columns(ingest, ["dataset", "content"]):
        if dataset in (None, name) and (parts := sentences(content)):
            yield parts[0]
