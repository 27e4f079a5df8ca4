"""The queries that are searched with, and what searchers find for them as rows of the table `candidates`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.candidates.params import CandidatesParams
from steps.core.tables import read_table, table_from_columns

DEV_QUERIES = 300  # judged ones, on which a ranker is measured
_SEED = 7


class DatasetQueries(NamedTuple):
    """Queries of one data set, in the order of their ids."""

    dataset: str
    ids: list[str]
    texts: list[str]


def select_queries(ingest: Path, params: CandidatesParams) -> list[DatasetQueries]:
    """Training queries, at most `max_queries` drawn by seed (0 = no limit), and DEV_QUERIES judged dev queries.

    Of `queries: judged` those training queries alone that have a relevant document; none at all without any of these.
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
