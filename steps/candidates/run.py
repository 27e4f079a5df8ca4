"""Search for the training queries with what there is before any teacher: documents that may be hard negatives."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.files import staged_folder, write_json
from steps.candidates.params import CandidatesParams
from steps.candidates.queries import DatasetQueries, candidate_rows, select_queries
from steps.core.progress import progress
from steps.core.tables import stream_table
from steps.retrieval.corpus_bm25 import corpus_bm25
from steps.tracking.runs import Run

_QUERIES = 256  # searched by BM25 at once
_MOST_EMPTY = 0.2  # share of the queries that may find nothing before a warning


def run(ingest: Path, output: Path, params: CandidatesParams, run: Run) -> None:
    """Write `output/<searcher>/candidates.parquet` of each searcher, ranks from 1, and `output/report.json`.

    A query searches its own data set. What a searcher finds says nothing of relevance.
    """
    query_sets = select_queries(ingest, params)
    counts: dict[str, int] = {}
    with staged_folder(output) as staging:
        for searcher in params.searchers:
            with TemporaryDirectory(prefix=".scratch.", dir=staging) as scratch:
                if searcher == "bm25":
                    tables = by_bm25(ingest, query_sets, params.depth)
                else:
                    from steps.candidates.dense import by_dense  # loads torch

                    tables = by_dense(ingest, query_sets, Path(scratch), params)
                path = stream_table(staging / searcher, "candidates", tables)
            counts[searcher] = pq.read_metadata(path).num_rows
            _warn(searcher, query_sets, path)
        queries = {query_set.dataset: len(query_set.ids) for query_set in query_sets}
        write_json(staging / "report.json", {"queries": queries, "candidates": counts})
    run.metrics({f"candidates.{name}": count for name, count in counts.items()})
    run.artifact(output / "report.json")


def by_bm25(ingest: Path, query_sets: Sequence[DatasetQueries], depth: int) -> Iterator[pa.Table]:
    """The table `candidates`, some queries at a time: at most `depth` documents that share a term with each query."""
    for query_set in query_sets:
        engine = corpus_bm25(ingest, query_set.dataset)
        starts = range(0, len(query_set.ids), _QUERIES)
        for start in progress(starts, len(starts), f"BM25, {query_set.dataset}"):
            scores, doc_ids = engine.search(query_set.texts[start : start + _QUERIES], depth)
            yield candidate_rows(query_set.ids[start : start + _QUERIES], doc_ids, scores)


def _warn(searcher: str, query_sets: Sequence[DatasetQueries], path: Path) -> None:
    table = pq.read_table(path, columns=["query_id", "rank"])
    answered = set(table.filter(pc.equal(table["rank"], 1))["query_id"].to_pylist())
    for query_set in query_sets:
        empty, searched = sum(query_id not in answered for query_id in query_set.ids), len(query_set.ids)
        if empty > _MOST_EMPTY * searched:
            print(
                f"candidates: WARNING: {searcher} finds no document for {empty:,} of {searched:,} queries of"
                f" {query_set.dataset}: they share no word with any. Most likely queries and documents are in different"
                " languages; the searcher dense needs no shared word (candidates.searchers)",
                file=sys.stderr,
            )
