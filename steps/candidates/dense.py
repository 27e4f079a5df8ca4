"""Candidates by the embeddings of an untrained dual encoder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import ROLES
from steps.candidates.params import CandidatesParams
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.progress import progress
from steps.encoders.bases import resolve_base
from steps.encoders.batch_check import check_tower_batches
from steps.encoders.towers import check_whole, encode, load_tower, positions_of, route
from steps.encoders.vector_cache import embed_once
from steps.retrieval.exact_search import best_documents

MAX_DOCUMENT_LENGTH = 256  # tokens of a document that are read, or as many as the base has positions for
SHARD_TEXTS = 4096  # written to the cache at once: what a killed run repeats at most
_QUERIES = 32_768  # searched with at once, for each time that the documents are read


def by_dense(
    ingest: Path, query_sets: Sequence[tuple[str, list[str], list[str]]], scratch: Path, params: CandidatesParams
) -> Iterator[tuple[list[str], list[list[str]], list[np.ndarray]]]:
    """Ids of some queries at a time, with ids and scores of the `depth` documents that are most similar for the base.

    `query_sets`: name of a data set, ids of queries and their texts. Embeddings are kept below SLIMTOWER_CACHE.
    UserError for a base that compares by distances or cuts vectors.
    """
    if not query_sets:  # the corpus need not be read
        return
    tower = _tower(params)
    tower.save_pretrained(str(scratch / "tower"), create_model_card=False)  # a name on the hub has no files to digest
    embed_once(
        tower,
        fingerprint(scratch / "tower").id,
        "document",
        CorpusTexts(ingest),
        scratch / "documents.npy",
        dtype="float32",
        precision=params.precision,
        batch_size=params.batch_size,
        shard_texts=SHARD_TEXTS,
        caption="embed documents",
    )
    documents = np.load(scratch / "documents.npy", mmap_mode="r")
    fields = np.array(list(corpus_columns(ingest, ["doc_id", "dataset"])), dtype=object).reshape(-1, 2)
    for dataset, query_ids, texts in query_sets:
        rows = np.flatnonzero(fields[:, 1] == dataset)
        starts = range(0, len(query_ids), _QUERIES)
        for start in progress(starts, len(starts), f"search, {dataset}"):
            batch = slice(start, start + _QUERIES)
            vectors = encode(tower, texts[batch], "query", precision=params.precision, batch_size=params.batch_size)
            scores, doc_rows = best_documents(vectors, documents, params.depth, rows)
            yield query_ids[batch], [fields[positions, 0].tolist() for positions in doc_rows], list(scores)


def _tower(params: CandidatesParams) -> SentenceTransformer:
    """The base, which reads MAX_DOCUMENT_LENGTH tokens, and whose inner products are its similarity."""
    tower = load_tower(resolve_base(params.base))
    if tower.similarity_fn_name not in {"cosine", "dot"}:
        raise UserError(
            f"candidates: base {params.base} compares by {tower.similarity_fn_name}; use one that compares by cosine or"
            " dot product"
        )
    check_whole(tower, f"candidates: base {params.base}")
    check_tower_batches(tower, f"candidates: base {params.base}")
    network = getattr(route(tower, "document")[0], "auto_model", None)
    if network is not None:  # a table of tokens reads all of a text
        tower.max_seq_length = min(MAX_DOCUMENT_LENGTH, positions_of(network) or MAX_DOCUMENT_LENGTH)
    normalised = [any(isinstance(module, Normalize) for module in route(tower, role)) for role in ROLES]
    if tower.similarity_fn_name == "cosine" and not all(normalised):
        tower.append(Normalize())
    return tower
