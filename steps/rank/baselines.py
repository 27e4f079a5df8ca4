"""What BM25, and the ranker's base before it was trained, make of the pairs on which the ranker is measured."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower
from steps.rank.params import CrossEncoderParams
from steps.retrieval.corpus_bm25 import corpus_bm25


class Pairs(NamedTuple):
    """A query, its data set, and documents of it that are scored."""

    text: str
    dataset: str
    doc_ids: list[str]


Scores = list[dict[str, float]]
"""By document, of each query."""


def bm25_scores(ingest: Path, query_pairs: Sequence[Pairs]) -> Scores:
    """BM25 over the whole data set; 0 without a shared term."""
    by_query: Scores = [{} for _ in query_pairs]
    for dataset in sorted({pairs.dataset for pairs in query_pairs}):
        engine = corpus_bm25(ingest, dataset)
        named = {doc_id for pairs in query_pairs if pairs.dataset == dataset for doc_id in pairs.doc_ids}
        rows = {doc_id: row for row, doc_id in enumerate(engine.doc_ids) if doc_id in named}
        for scores, pairs in zip(by_query, query_pairs, strict=True):
            if pairs.dataset == dataset:
                values = engine.scores(pairs.text, np.array([rows[doc_id] for doc_id in pairs.doc_ids], dtype=np.int64))
                scores.update(zip(pairs.doc_ids, values.tolist(), strict=True))
    return by_query


def base_scores(query_pairs: Sequence[Pairs], texts: Mapping[str, str], params: CrossEncoderParams) -> Scores:
    """`tower_scores` of the base, which reads `max_length` tokens of a document as the ranker does of a pair."""
    tower = load_tower(resolve_base(params.base))
    tower.max_seq_length = min(tower.max_seq_length or params.max_length, params.max_length)
    return tower_scores(tower, query_pairs, texts, params)


def tower_scores(
    tower: SentenceTransformer, query_pairs: Sequence[Pairs], texts: Mapping[str, str], params: CrossEncoderParams
) -> Scores:
    """Similarity of a tower's embeddings.

    texts: those of the documents, by id.
    """
    ids = sorted({doc_id for pairs in query_pairs for doc_id in pairs.doc_ids})
    rows = {doc_id: row for row, doc_id in enumerate(ids)}
    embed = partial(encode, tower, precision=params.precision, batch_size=params.batch_size)
    documents = embed([texts[doc_id] for doc_id in ids], "document", caption="base on dev")
    queries = embed([pairs.text for pairs in query_pairs], "query")
    by_query: Scores = []
    for query, pairs in zip(queries, query_pairs, strict=True):
        vectors = documents[[rows[doc_id] for doc_id in pairs.doc_ids]]
        scores = tower.similarity(query[None], vectors)[0].tolist()
        by_query.append(dict(zip(pairs.doc_ids, scores, strict=True)))
    return by_query
