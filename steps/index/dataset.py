"""Index one data set: exact, approximate, semantic IDs; returns its entry of the manifest and what happened."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from slimtower.common.files import sha256_file
from slimtower.serving.dims import truncate
from slimtower.serving.index_files import open_index
from steps.index import incremental, shards, state
from steps.index.build import flat, trained
from steps.index.documents import Documents
from steps.index.exact import ExactTopK, best_rows, exact_top, queries_digest, updated_top
from steps.index.factories import factory
from steps.index.params import TRAINING_VECTORS, IndexParams
from steps.index.queries import RecallQueries
from steps.index.semantic_ids import SemanticIds, codebooks, semantic_ids, updated_ids
from steps.index.state import Previous, State, TunedSettings
from steps.index.tuning import K, Tuned, tune, tuned_again
from steps.index.vectors import Vectors

TABLES = ("doc_ids.parquet", "semantic_ids.parquet")
RETRAIN_AFTER = 0.2
"""The index is trained anew once the documents that came and went since its last training are more than this share of
those trained on. Below, its last state under SLIMTOWER_CACHE is brought up to date.
"""
SEMANTIC_LEVELS, SEMANTIC_CODES = 6, 256  # codes of a document, and centroids a level
_TIES = 20  # hits behind the tenth that are looked at for equal scores


@dataclass(frozen=True)
class Indexed:
    """A data set's entry in the manifest, and how its index came about, in numbers."""

    entry: dict[str, Any]
    update: dict[str, float]


def index_dataset(
    folder: Path,
    state_folder: Path,
    documents: Documents,
    vectors: Vectors,
    queries: RecallQueries,
    params: IndexParams,
) -> Indexed:
    """Write `flat.faiss`, `ann.faiss`, `doc_ids.parquet` and `semantic_ids.parquet` of one data set.

    `state_folder`: cache folder of the last run's state. If no more than RETRAIN_AFTER has changed since the
    index was trained, only new, changed and removed documents are worked on. Rows of every index are the rows of
    `documents`.
    """
    folder.mkdir()
    digests = vectors.digests()
    previous = state.load(state_folder, documents.doc_ids, digests)
    if previous is not None and previous.drift() > RETRAIN_AFTER:
        previous = None
    slices = shards.slices(vectors, params.shard_vectors)
    exact = shards.write(folder, "flat", map(flat, slices), several=len(slices) > 1)
    indexes: dict[str, Any] = {"flat": {"factory": "Flat", "settings": {}, **exact}}
    measured: dict[str, Any] = {"flat_bytes_per_vector": exact["bytes"] / len(vectors)}
    update = {
        "added": previous.match.added if previous else len(vectors),
        "removed": previous.match.removed if previous else 0,
        "drift": previous.drift() if previous else 0.0,
    }
    query_vectors, top, tuned_settings = truncate(queries.vectors, vectors.dim), None, None
    if params.kind != "flat":
        top, update["scanned_queries"] = _top(previous, vectors, query_vectors)
        approximate = _approximate(folder, previous, slices, vectors, query_vectors, best_rows(top, K), params)
        indexes["ann"], tuned_settings = approximate.entry, approximate.tuned_settings
        update |= {"trained": float(approximate.trained), "tuned": float(approximate.tuned)}
        measured |= {
            "ann_recall_at_10": approximate.recall,
            "target_recall": params.target_recall,
            "target_met": approximate.met,
            "recall_queries": len(query_vectors),
            "recall_queries_from": queries.source,
            "ann_bytes_per_vector": indexes["ann"]["bytes"] / len(vectors),
        }
    ids = _semantic_ids(previous, vectors, params)
    ids.write(folder / "semantic_ids.parquet", documents.doc_ids)
    measured["semantic_ids"] = {
        "relative_error": ids.errors(),
        "codes": ids.books.shape[1],
        "distinct_share": ids.distinct_share(),
    }
    documents.write(folder)
    new_state = State(
        trained_on=previous.state.trained_on if previous else len(vectors),
        changed=previous.changed() if previous else 0,
        tuned=tuned_settings,
        ids=ids,
        wanted_ids=_wanted_ids(),
        top=top,
        asked=queries_digest(query_vectors),
    )
    state.save(state_folder, new_state, documents.doc_ids, digests, folder / "ann.faiss")
    entry = {
        "vectors": len(vectors),
        "corpus_digest": documents.digest,
        "indexes": indexes,
        "files": {name: sha256_file(folder / name) for name in TABLES if (folder / name).is_file()},
        "measured": measured,
    }
    return Indexed(entry, update)


def _top(previous: Previous | None, vectors: Vectors, queries: np.ndarray) -> tuple[ExactTopK, int]:
    """The exact hits of the queries, and how many queries saw every vector."""
    k = min(K + _TIES, len(vectors))
    if previous is not None and previous.state.asked == queries_digest(queries):
        before = previous.state.top
        if before is not None and before.rows.shape[1] == k:
            return updated_top(before, previous.match, vectors, queries)
    return exact_top(vectors, queries, k), len(queries)


@dataclass(frozen=True)
class _Approximate:
    """Manifest entry of the approximate index, what is kept of it (None: in shards), what it finds, what was done."""

    entry: dict[str, Any]
    tuned_settings: TunedSettings | None
    recall: float
    met: bool
    trained: bool
    tuned: bool


def _approximate(
    folder: Path,
    previous: Previous | None,
    slices: list[Vectors],
    vectors: Vectors,
    queries: np.ndarray,
    exact_rows: np.ndarray,
    params: IndexParams,
) -> _Approximate:
    """Build or bring up to date the approximate index, tune it and write it."""
    before = previous.state.tuned if previous else None
    earlier_index = previous.index() if previous is not None and before is not None else None
    if previous is not None and before is not None and earlier_index is not None:
        text, several = before.factory, False
        built = iter([incremental.updated(earlier_index, previous.match, vectors)])
    else:
        before = None
        text = factory(params, len(vectors), vectors.dim)
        template = trained(text, vectors, TRAINING_VECTORS, params.seed)
        several = len(slices) > 1 and not shards.mergeable(template)
        built = shards.build(template, slices)
    entry: dict[str, Any] = {"kind": "factory" if params.factory else params.kind, "factory": text}
    if several:
        entry |= {"settings": {}, **shards.write(folder, "ann", built, several=True)}
        tuned, whole_grid = tune(open_index(folder, "ann", entry), queries, exact_rows, params.target_recall), True
    else:
        index = next(built)
        earlier_settings = before if previous and previous.state.asked == queries_digest(queries) else None
        tuned, whole_grid = _tuned(earlier_settings, index, queries, exact_rows, params.target_recall)
        entry |= shards.write(folder, "ann", _once(index), several=False)
    tuned_settings = None if several else TunedSettings(text, tuned.settings, params.target_recall, tuned.met)
    return _Approximate(
        entry | {"settings": tuned.settings}, tuned_settings, tuned.recall, tuned.met, before is None, whole_grid
    )


def _tuned(
    before: TunedSettings | None, index: faiss.Index, queries: np.ndarray, exact_rows: np.ndarray, target: float
) -> tuple[Tuned, bool]:
    """The settings that the same queries chose before, where they still do, and whether they were searched for anew."""
    if before is None or before.target != target:
        return tune(index, queries, exact_rows, target), True
    return tuned_again(index, queries, exact_rows, target, before.settings, before.met)


def _once(index: faiss.Index) -> Iterator[faiss.Index]:
    yield index


def _wanted_ids() -> dict[str, int]:
    return {"levels": SEMANTIC_LEVELS, "codes": SEMANTIC_CODES}


def _semantic_ids(previous: Previous | None, vectors: Vectors, params: IndexParams) -> SemanticIds:
    """Semantic IDs, with the codebooks of before where there are any for as many levels and codes."""
    if previous is not None and previous.state.ids is not None and previous.state.wanted_ids == _wanted_ids():
        return updated_ids(previous.state.ids, previous.match, vectors)
    sample = vectors.sample(TRAINING_VECTORS, params.seed)
    return semantic_ids(vectors, codebooks(sample, SEMANTIC_LEVELS, SEMANTIC_CODES, params.seed))
