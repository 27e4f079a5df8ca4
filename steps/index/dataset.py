"""Index one data set: exact, approximate, semantic IDs; returns its entry of the manifest and what happened."""

from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import sha256_file
from slimtower.serving.dims import truncate
from slimtower.serving.index_files import open_index
from steps.index import state
from steps.index.build import build_shards, flat, mergeable, shard_slices, trained, write_shards
from steps.index.incremental import updated
from steps.index.inputs import Documents, RecallQueries, Vectors
from steps.index.params import TRAINING_VECTORS, IndexParams, factory
from steps.index.semantic_ids import codebooks, semantic_ids, updated_ids
from steps.index.state import Previous, State, TunedSettings
from steps.index.tuning import ExactTopK, K, Target, Tuned, exact_top, queries_digest, tune, tuned_again, updated_top

TABLES = ("doc_ids.parquet", "semantic_ids.parquet")
RETRAIN_AFTER = 0.2
"""The index is trained anew once the documents that came and went since its last training are more than this share of
those trained on. Below, its last state under SLIMTOWER_CACHE is brought up to date.
"""
SEMANTIC_LEVELS, SEMANTIC_CODES = 6, 256  # codes of a document, and centroids a level


def index_dataset(
    folder: Path,
    state_folder: Path,
    documents: Documents,
    vectors: Vectors,
    queries: RecallQueries,
    params: IndexParams,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Write the indexes of one data set; returns its entry in the manifest, and how they came about, in numbers.

    `state_folder` caches the last run's state: if at most RETRAIN_AFTER has changed since the index was trained, only
    new, changed and removed documents are worked on. Rows of every index are the rows of `documents`.
    """
    folder.mkdir()
    digests = vectors.digests()
    previous = state.load(state_folder, documents.doc_ids, digests)
    if previous is not None and previous.drift() > RETRAIN_AFTER:
        previous = None
    slices = shard_slices(vectors, params.shard_vectors)
    exact = write_shards(folder, "flat", map(flat, slices), several=len(slices) > 1)
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
        indexes["ann"], tuned, tuned_settings, index_update = _approximate(
            folder, previous, slices, vectors, Target.of(query_vectors, vectors, top), params
        )
        update |= index_update
        measured |= {
            "ann_recall_at_10": tuned.recall,
            "target_recall": params.target_recall,
            "target_met": tuned.met,
            "recall_queries": len(query_vectors),
            "recall_queries_from": queries.source,
            "ann_bytes_per_vector": indexes["ann"]["bytes"] / len(vectors),
        }
    if previous is not None:
        ids = updated_ids(previous.state.ids, previous.match, vectors)
    else:
        sample = vectors.sample(TRAINING_VECTORS, params.seed)
        ids = semantic_ids(vectors, codebooks(sample, SEMANTIC_LEVELS, SEMANTIC_CODES, params.seed))
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
        top=top,
        asked=queries_digest(query_vectors),
    )
    state.save(state_folder, new_state, documents.doc_ids, digests, folder / "ann.faiss")
    entry = {
        "vectors": len(vectors),
        "corpus_digest": documents.digest,
        "indexes": indexes,
        "files": {name: sha256_file(folder / name) for name in TABLES},
        "measured": measured,
    }
    return entry, update


def _top(previous: Previous | None, vectors: Vectors, queries: np.ndarray) -> tuple[ExactTopK, int]:
    """The exact hits of the queries, and how many queries saw every vector."""
    k = min(K, len(vectors))
    if previous is not None and previous.state.asked == queries_digest(queries):
        before = previous.state.top
        if before is not None and before.rows.shape[1] == k:
            return updated_top(before, previous.match, vectors, queries)
    return exact_top(vectors, queries, k), len(queries)


def _approximate(
    folder: Path,
    previous: Previous | None,
    slices: list[Vectors],
    vectors: Vectors,
    target: Target,
    params: IndexParams,
) -> tuple[dict[str, Any], Tuned, TunedSettings | None, dict[str, float]]:
    """Build or update the approximate index, tune it and write it: its manifest entry, what it finds, what the next run
    needs of it (None: in shards), and what was done.
    """
    least_recall, several, whole_grid = params.target_recall, False, True
    before = previous.state.tuned if previous else None
    earlier_index = previous.index() if previous and before else None
    if previous and before and earlier_index is not None:
        text = before.factory
        built = iter([updated(earlier_index, previous.match, vectors)])
    else:
        before, text = None, factory(params, len(vectors), vectors.dim)
        template = trained(text, vectors, TRAINING_VECTORS, params.seed)
        several = len(slices) > 1 and not mergeable(template)
        built = build_shards(template, slices)
    entry: dict[str, Any] = {"kind": "factory" if params.factory else params.kind, "factory": text}
    if several:
        entry |= {"settings": {}, **write_shards(folder, "ann", built, several=True)}
        tuned = tune(open_index(folder, "ann", entry), target, least_recall)
    else:
        index = next(built)
        same_queries = previous is not None and previous.state.asked == queries_digest(target.queries)
        if before and before.target == least_recall and same_queries:
            tuned, whole_grid = tuned_again(index, target, least_recall, before.settings, before.met)
        else:
            tuned = tune(index, target, least_recall)
        entry |= write_shards(folder, "ann", iter([index]), several=False)
    tuned_settings = None if several else TunedSettings(text, tuned.settings, least_recall, tuned.met)
    done = {"trained": float(before is None), "tuned": float(whole_grid)}
    return entry | {"settings": tuned.settings}, tuned, tuned_settings, done
