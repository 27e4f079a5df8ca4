"""Candidates by BM25."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from steps.candidates.queries import DatasetQueries, candidate_rows
from steps.core.progress import progress
from steps.retrieval.corpus_bm25 import corpus_bm25

_QUERIES = 256  # searched at once


def by_bm25(ingest: Path, query_sets: Sequence[DatasetQueries], depth: int) -> Iterator[pa.Table]:
    """The table `candidates`, some queries at a time: at most `depth` documents that share a term with each query."""
    for query_set in query_sets:
        engine = corpus_bm25(ingest, query_set.dataset)
        starts = range(0, len(query_set.ids), _QUERIES)
        for start in progress(starts, len(starts), f"BM25, {query_set.dataset}"):
            scores, doc_ids = engine.search(query_set.texts[start : start + _QUERIES], depth)
            yield candidate_rows(query_set.ids[start : start + _QUERIES], doc_ids, scores)
