"""Candidates by BM25."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from steps.candidates.asked import Asked
from steps.candidates.rows import candidate_rows
from steps.core.progress import progress
from steps.retrieval.corpus_bm25 import corpus_bm25

_QUERIES = 256  # searched at once


def by_bm25(ingest: Path, asked: Sequence[Asked], depth: int) -> Iterator[pa.Table]:
    """The table `candidates`, some queries at a time: at most `depth` documents that share a term with each query."""
    for each in asked:
        engine = corpus_bm25(ingest, each.dataset)
        starts = range(0, len(each.ids), _QUERIES)
        for start in progress(starts, len(starts), f"BM25, {each.dataset}"):
            scores, doc_ids = engine.search(each.texts[start : start + _QUERIES], depth)
            yield candidate_rows(each.ids[start : start + _QUERIES], doc_ids, scores)
