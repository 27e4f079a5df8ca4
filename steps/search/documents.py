"""The text of the few documents that a result list shows, read from the corpus without loading it whole."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from steps.core.tables import table_path


def read_contents(ingest: Path, doc_ids: Sequence[str]) -> dict[str, str]:
    """Contents by document id; ids that the corpus does not hold are left out, all of them where there is no corpus."""
    if not doc_ids or not (ingest / "corpus.parquet").is_file():
        return {}
    rows = pq.read_table(
        table_path(ingest, "corpus"), columns=["doc_id", "content"], filters=[("doc_id", "in", list(doc_ids))]
    )
    return dict(zip(rows["doc_id"].to_pylist(), rows["content"].to_pylist(), strict=True))
