"""Search for the training queries with what there is before any teacher: documents that may be hard negatives."""

import sys
from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.files import staged_folder, write_json
from steps.candidates.params import CandidatesParams
from steps.core.progress import progress
from steps.core.tables import read_table, stream_table, table_from_columns
from steps.retrieval.lexical import corpus_bm25
from steps.tracking.runs import Run

_QUERIES = 256  # searched by BM25 at once
_MOST_EMPTY = 0.2  # share of the queries that may find nothing before a warning
DEV_QUERIES = 300  # judged ones, on which a ranker is measured
_SEED = 7


class DatasetQueries(NamedTuple):
    """Queries of one data set, in the order of their ids."""

    dataset: str
    ids: list[str]
    texts: list[str]


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
                    hits = by_bm25(ingest, query_sets, params.depth)
                else:
                    from steps.candidates.dense import by_dense  # loads torch

                    hits = by_dense(ingest, query_sets, Path(scratch), params)
                path = stream_table(staging / searcher, "candidates", starmap(candidate_rows, hits))
            counts[searcher] = pq.read_metadata(path).num_rows
            _warn(searcher, query_sets, path)
        queries = {query_set.dataset: len(query_set.ids) for query_set in query_sets}
        write_json(staging / "report.json", {"queries": queries, "candidates": counts})
    run.metrics({f"candidates.{name}": count for name, count in counts.items()})
    run.artifact(output / "report.json")


def select_queries(ingest: Path, params: CandidatesParams) -> list[DatasetQueries]:
    """At most `max_queries` training queries, drawn by seed (0 = no limit), and DEV_QUERIES judged dev queries.

    `queries: judged` takes those alone that have a relevant document. Without a training query there are none at all.
    """
    queries, qrels = (read_table(ingest, name) for name in ("queries", "qrels"))
    queries = queries.sort_by([("dataset", "ascending"), ("query_id", "ascending")])
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"].unique()
    judged = pc.is_in(queries["query_id"], value_set=relevant)
    trains, develops = (pc.equal(queries["split"], split) for split in ("train", "dev"))
    chosen = trains if params.queries == "all" else pc.and_(trains, judged)
    random = np.random.default_rng(_SEED)
    rows = np.flatnonzero(chosen.to_numpy())
    if not len(rows):
        return []
    if 0 < 2 * params.max_queries < len(rows):
        print(
            f"candidates: searches with {params.max_queries:,} of {len(rows):,} training queries"
            " (candidates.max_queries); raise it where there is time for more, 0 takes all",
            file=sys.stderr,
        )
    if 0 < params.max_queries < len(rows):
        rows = random.choice(rows, size=params.max_queries, replace=False)
    dev = np.flatnonzero(pc.and_(develops, judged).to_numpy())
    dev = random.choice(dev, size=min(len(dev), DEV_QUERIES), replace=False)
    sampled = queries.take(np.sort(np.concatenate([rows, dev])))
    names, datasets = ("query_id", "text"), sampled["dataset"].unique().to_pylist()
    tables = [(dataset, sampled.filter(pc.equal(sampled["dataset"], dataset))) for dataset in datasets]
    return [DatasetQueries(dataset, *(table[name].to_pylist() for name in names)) for dataset, table in tables]


def by_bm25(
    ingest: Path, query_sets: Sequence[DatasetQueries], depth: int
) -> Iterator[tuple[list[str], list[list[str]], list[np.ndarray]]]:
    """Ids of some queries at a time, with ids and scores of at most `depth` documents that share a term with each."""
    for dataset, query_ids, texts in query_sets:
        engine = corpus_bm25(ingest, dataset)
        starts = range(0, len(query_ids), _QUERIES)
        for start in progress(starts, len(starts), f"BM25, {dataset}"):
            scores, doc_ids = engine.search(texts[start : start + _QUERIES], depth)
            yield query_ids[start : start + _QUERIES], doc_ids, scores


def candidate_rows(
    query_ids: Sequence[str], doc_ids: Sequence[Sequence[str]], scores: Sequence[np.ndarray]
) -> pa.Table:
    """Rows of `candidates`: the documents of each query, best first, with their scores; ranks from 1."""
    lengths = [len(hit_ids) for hit_ids in doc_ids]
    ranks = [rank for length in lengths for rank in range(1, length + 1)]
    repeated_query_ids = np.repeat(np.array(query_ids, dtype=object), lengths).tolist()
    flat_doc_ids = [doc_id for hit_ids in doc_ids for doc_id in hit_ids]
    values = np.concatenate([*scores, np.zeros(0, dtype=np.float32)]).tolist()
    return table_from_columns("candidates", (repeated_query_ids, flat_doc_ids, ranks, values))


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
