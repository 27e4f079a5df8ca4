"""Index one data set: exact, approximate, semantic IDs; returns its part of the manifest and what happened."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.corpus import corpus_digest
from steps.core.files import sha256_file, sha256_text
from steps.core.index_files import open_index
from steps.core.params.index import IndexParams
from steps.core.texts import document_text
from steps.core.widths import cut
from steps.index import incremental, shards
from steps.index.build import flat, trained
from steps.index.factories import factory
from steps.index.incremental import Held
from steps.index.queries import RecallQueries
from steps.index.semantic_ids import codebooks, semantic_ids
from steps.index.tuning import K, Tuned, tune
from steps.index.vectors import Vectors

DIGESTED = ("doc_id", "title", "topic", "content")


@dataclass(frozen=True)
class Indexed:
    """A data set's entry in the manifest, and how its approximate index came about, in numbers."""

    entry: dict[str, Any]
    update: dict[str, float]


def index_dataset(
    folder: Path, state: Path, corpus: pa.Table, vectors: Vectors, queries: RecallQueries, params: IndexParams
) -> Indexed:
    """Write `flat.faiss`, `ann.faiss`, `doc_ids.parquet` and `semantic_ids.parquet` of one data set.

    `state`: cache folder of its approximate index. Rows of every index are the rows of the corpus.
    """
    folder.mkdir()
    pieces = shards.parts(vectors, params.shard_vectors)
    exact = shards.write(folder, "flat", map(flat, pieces), several=len(pieces) > 1)
    indexes: dict[str, Any] = {"flat": {"factory": "Flat", "settings": {}, **exact}}
    measured: dict[str, Any] = {"flat_bytes_per_vector": exact["bytes"] / len(vectors)}
    update: dict[str, float] = {}
    if params.kind != "flat":
        asked = cut(queries.vectors, vectors.width)
        wanted = open_index(folder, "flat", indexes["flat"]).search(asked, min(K, len(vectors)))[1]
        indexes["ann"], tuned, update = _approximate(folder, state, corpus, vectors, asked, wanted, params)
        measured |= {
            "ann_recall_at_10": tuned.recall,
            "target_recall": params.target_recall,
            "target_met": tuned.met,
            "recall_queries": len(asked),
            "recall_queries_from": queries.source,
            "ann_bytes_per_vector": indexes["ann"]["bytes"] / len(vectors),
        }
    measured["semantic_ids"] = _write_semantic_ids(folder, corpus, vectors, params)
    _write_doc_ids(folder, corpus)
    tables = ("doc_ids.parquet", "semantic_ids.parquet")
    entry = {
        "vectors": len(vectors),
        "corpus_digest": corpus_digest(zip(*(corpus[name].to_pylist() for name in DIGESTED), strict=True)),
        "indexes": indexes,
        "files": {name: sha256_file(folder / name) for name in tables if (folder / name).is_file()},
        "measured": measured,
    }
    return Indexed(entry, update)


def _approximate(
    folder: Path,
    state: Path,
    corpus: pa.Table,
    vectors: Vectors,
    queries: np.ndarray,
    wanted: np.ndarray,
    params: IndexParams,
) -> tuple[dict[str, Any], Tuned, dict[str, float]]:
    """Build or bring up to date the approximate index, tune it and write it."""
    pieces = shards.parts(vectors, params.shard_vectors)
    doc_ids, digests = corpus["doc_id"].to_pylist(), vectors.digests()
    previous = incremental.load(state, doc_ids, digests)
    if previous is not None and previous.drift() <= params.retrain_after:
        index = incremental.updated(previous, vectors)
        held = Held(doc_ids, digests, previous.factory, previous.trained_on, previous.changed + previous.exchanged)
        update = {"added": previous.added, "removed": previous.removed, "trained": 0.0, "drift": previous.drift()}
        several, built = False, iter([index])
    else:
        text = factory(params, len(vectors), vectors.width)
        template = trained(text, vectors, params.training_vectors, params.seed)
        held = Held(doc_ids, digests, text, len(vectors), 0)
        update = {"added": len(vectors), "removed": 0.0, "trained": 1.0, "drift": 0.0}
        several = len(pieces) > 1 and not shards.mergeable(template)
        built = shards.build(template, pieces)
    entry: dict[str, Any] = {"kind": "factory" if params.factory else params.kind, "factory": held.factory}
    if several:
        entry |= {"settings": {}, **shards.write(folder, "ann", built, several=True)}
        tuned = tune(open_index(folder, "ann", entry), queries, wanted, params.target_recall)
    else:
        index = next(built)
        tuned = tune(index, queries, wanted, params.target_recall)
        entry |= shards.write(folder, "ann", _once(index), several=False)
        incremental.save(state, index, held)
    return entry | {"settings": tuned.settings}, tuned, update


def _once(index: faiss.Index) -> Iterator[faiss.Index]:
    yield index


def _write_semantic_ids(folder: Path, corpus: pa.Table, vectors: Vectors, params: IndexParams) -> dict[str, Any]:
    """Write `semantic_ids.parquet` (doc_id, level_1 and so on, int16); returns what the levels leave over."""
    wanted = params.semantic_ids
    if not wanted.levels:
        return {}
    sample = vectors.sample(params.training_vectors, params.seed)
    found = semantic_ids(vectors, codebooks(sample, wanted.levels, wanted.codes, params.seed))
    columns = {f"level_{level + 1}": pa.array(found.codes[:, level]) for level in range(wanted.levels)}
    pq.write_table(pa.table({"doc_id": corpus["doc_id"], **columns}), folder / "semantic_ids.parquet")
    return {"relative_error": found.errors, "codes": found.centroids, "distinct_share": found.distinct_share()}


def _write_doc_ids(folder: Path, corpus: pa.Table) -> None:
    """Write `doc_ids.parquet`: the document of each row, and the sha256 of the text that was embedded."""
    texts = zip(corpus["title"].to_pylist(), corpus["content"].to_pylist(), strict=True)
    shas = [sha256_text(document_text(title, content)) for title, content in texts]
    pq.write_table(pa.table({"doc_id": corpus["doc_id"], "text_sha": shas}), folder / "doc_ids.parquet")
