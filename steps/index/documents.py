"""The documents of each data set, without their texts."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.files import sha256_text
from steps.core.corpus import corpus_batches, corpus_template, digest_of, document_digest

COLUMNS = ("doc_id", "title", "topic", "content")


@dataclass(frozen=True)
class Documents:
    """Of one data set, in the corpus' order: rows in the corpus, ids, hex sha256 of what was embedded; their digest."""

    rows: np.ndarray
    doc_ids: pa.ChunkedArray
    text_shas: pa.ChunkedArray
    digest: str

    def write(self, folder: Path) -> None:
        """Write `doc_ids.parquet`: the document of each row, and the sha256 of the text that was embedded."""
        table = pa.table({"doc_id": self.doc_ids, "text_sha": self.text_shas})
        pq.write_table(table, folder / "doc_ids.parquet", use_dictionary=False)


def read_documents(ingest: Path) -> dict[str, Documents]:
    """The documents of each data set by its name; the texts pass through memory a batch at a time."""
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    ids: dict[str, list[pa.Array]] = defaultdict(list)
    shas: dict[str, list[pa.Array]] = defaultdict(list)
    digests: dict[str, list[bytes]] = defaultdict(list)
    start, template = 0, corpus_template(ingest)
    for batch in corpus_batches(ingest, ["dataset", *COLUMNS]):
        names = np.array(batch["dataset"].to_pylist())
        for name in np.unique(names).tolist():
            positions = np.flatnonzero(names == name)
            dataset_batch = batch if len(positions) == len(names) else batch.take(pa.array(positions))
            fields = list(zip(*(dataset_batch[column].to_pylist() for column in COLUMNS), strict=True))
            rows[name].append(positions + start)
            ids[name].append(dataset_batch["doc_id"])
            shas[name].append(pa.array([sha256_text(template.text(*rest)) for _, *rest in fields]))
            digests[name].append(b"".join(document_digest(*document) for document in fields))
        start += batch.num_rows
    return {
        name: Documents(
            np.concatenate(rows[name]),
            pa.chunked_array(ids[name]),
            pa.chunked_array(shas[name]),
            digest_of(digests[name]),
        )
        for name in sorted(rows)
    }
