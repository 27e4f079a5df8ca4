"""Vectors that an index has already, put into the order of the corpus: `embed` then embeds no document."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.array_files import new_array
from steps.ingest.source_data import Document
from steps.ingest.vector_params import VectorSource
from steps.ingest.vector_sources import stream_vectors

_NAMED = 3


def write_vectors(folder: Path, documents: Sequence[Document], sources: Mapping[str, VectorSource]) -> None:
    """Write `vectors.npy`, float32 `(documents, dim)`, in their order, and `report.json`; without sources only that.

    UserError unless every document has one vector, all of one dimension, finite and not of length 0. Vectors of other
    ids are left out.
    """
    folder.mkdir()
    placed = _Placed(folder / "vectors.npy", documents)
    report: dict[str, Any] = {}
    for dataset, source in sources.items():
        other_count = 0
        for ids, vectors in stream_vectors(source, f"ingest.document_vectors.{dataset}"):
            other_count += placed.put(dataset, ids, vectors)
        report[dataset] = {"kind": source.kind, "of_other_ids": other_count}
        if other_count:
            print(
                f"ingest: {dataset}: {other_count:,} vectors of ids that the corpus has not are left out",
                file=sys.stderr,
            )
    if sources:
        placed.finish()
    write_json(folder / "report.json", report)


class _Placed:
    """The vectors put so far."""

    def __init__(self, path: Path, documents: Sequence[Document]) -> None:
        self.path, self.documents = path, documents
        self.rows: dict[str, int] = {}
        self.there = np.zeros(len(documents), dtype=bool)
        self.matrix: np.ndarray | None = None

    def put(self, dataset: str, ids: Sequence[str], vectors: np.ndarray) -> int:
        """Put vectors `(n, dim)` of a data set's own ids into their rows; returns how many ids it does not have."""
        self.rows = self.rows or {document.doc_id: row for row, document in enumerate(self.documents)}
        if self.matrix is None:
            self.matrix = new_array(self.path, np.float32, (len(self.documents), vectors.shape[1]))
        if vectors.shape[1] != self.matrix.shape[1]:
            raise UserError(
                f"ingest.document_vectors.{dataset}: vectors of {vectors.shape[1]} dimensions beside others of"
                f" {self.matrix.shape[1]}; give those of one model"
            )
        if not np.isfinite(vectors).all():
            raise UserError(f"ingest.document_vectors.{dataset}: a vector is not finite; embed its document again")
        if len(empty := np.flatnonzero(~vectors.any(axis=1))):
            raise UserError(
                f"ingest.document_vectors.{dataset}: the vector of {ids[empty[0]]!r} is all zeros; embed its"
                " document again"
            )
        positions = np.array([self.rows.get(f"{dataset}/{doc_id}", -1) for doc_id in ids], dtype=np.int64)
        is_known = positions >= 0
        rows = positions[is_known]
        if self.there[rows].any() or len(np.unique(rows)) < len(rows):
            is_repeated = self.there[positions] | (np.bincount(rows, minlength=len(self.there))[positions] > 1)
            repeated = next(doc_id for doc_id, again in zip(ids, is_known & is_repeated, strict=True) if again)
            raise UserError(
                f"ingest.document_vectors.{dataset}: {repeated!r} has two vectors or more; give each id one"
            )
        self.matrix[rows], self.there[rows] = vectors[is_known], True
        return int((~is_known).sum())

    def finish(self) -> None:
        """UserError where a document has none."""
        if len(missing := np.flatnonzero(~self.there)):
            named = ", ".join(repr(self.documents[row].doc_id) for row in missing[:_NAMED])
            raise UserError(
                f"ingest.document_vectors: {len(missing):,} of {len(self.documents):,} documents have no vector, such"
                f" as {named}; ids are those of the source, without its name in front; add the missing ones to the"
                " index, or take them out of the corpus"
            )
        assert isinstance(self.matrix, np.memmap)
        self.matrix.flush()
