"""The queries that are searched with."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from steps.candidates.params import CandidatesParams
from steps.core.tables import read_table


class Asked(NamedTuple):
    """Queries of one data set, in the order of their ids."""

    dataset: str
    ids: list[str]
    texts: list[str]


def asked_queries(ingest: Path, params: CandidatesParams) -> list[Asked]:
    """Training queries, at most `max_queries` drawn by seed (0 = no limit), and the judged dev queries.

    Of `queries: judged` those training queries alone that have a relevant document. Test queries never.
    """
    queries, qrels = (read_table(ingest, name) for name in ("queries", "qrels"))
    queries = queries.sort_by([("dataset", "ascending"), ("query_id", "ascending")])
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"].unique()
    judged = pc.is_in(queries["query_id"], value_set=relevant)
    trains, develops = (pc.equal(queries["split"], split) for split in ("train", "dev"))
    chosen = trains if params.queries == "all" else pc.and_(trains, judged)
    rows = np.flatnonzero(chosen.to_numpy())
    if 0 < params.max_queries < len(rows):
        rows = np.random.default_rng(params.seed).choice(rows, size=params.max_queries, replace=False)
    dev = np.flatnonzero(pc.and_(develops, judged).to_numpy())
    found: dict[str, Asked] = {}
    for row in queries.take(np.sort(np.concatenate([rows, dev]))).to_pylist():
        asked = found.setdefault(row["dataset"], Asked(row["dataset"], [], []))
        asked.ids.append(row["query_id"])
        asked.texts.append(row["text"])
    return list(found.values())
