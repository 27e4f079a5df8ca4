"""The few documents that a result list shows, read from the corpus without loading it whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from steps.core.tables import table_path


class Document(NamedTuple):
    """Title and content of a document."""

    title: str
    content: str


def read_documents(ingest: Path, doc_ids: Sequence[str]) -> dict[str, Document]:
    """Documents by id; ids that the corpus does not hold are left out."""
    if not doc_ids:
        return {}
    rows = pq.read_table(
        table_path(ingest, "corpus"), columns=["doc_id", "title", "content"], filters=[("doc_id", "in", list(doc_ids))]
    )
    return {row["doc_id"]: Document(row["title"], row["content"]) for row in rows.to_pylist()}
