"""The queries that are searched with."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from steps.candidates.params import CandidatesParams
from steps.core.tables import read_table


class DatasetQueries(NamedTuple):
    """Queries of one data set, in the order of their ids."""

    dataset: str
    ids: list[str]
    texts: list[str]


def select_queries(ingest: Path, params: CandidatesParams) -> list[DatasetQueries]:
    """Training queries, at most `max_queries` drawn by seed (0 = no limit), and `dev_queries` judged dev queries.

    Of `queries: judged` those training queries alone that have a relevant document. Nobody where no training query is
    left. Test queries never.
    """
    queries, qrels = (read_table(ingest, name) for name in ("queries", "qrels"))
    queries = queries.sort_by([("dataset", "ascending"), ("query_id", "ascending")])
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"].unique()
    judged = pc.is_in(queries["query_id"], value_set=relevant)
    trains, develops = (pc.equal(queries["split"], split) for split in ("train", "dev"))
    chosen = trains if params.queries == "all" else pc.and_(trains, judged)
    random = np.random.default_rng(params.seed)
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
    dev = random.choice(dev, size=min(len(dev), params.dev_queries), replace=False)
    queries_by_dataset: dict[str, DatasetQueries] = {}
    for row in queries.take(np.sort(np.concatenate([rows, dev]))).to_pylist():
        selected = queries_by_dataset.setdefault(row["dataset"], DatasetQueries(row["dataset"], [], []))
        selected.ids.append(row["query_id"])
        selected.texts.append(row["text"])
    return list(queries_by_dataset.values())
