"""Scores of training queries' candidates: the table `relevance`, from which triplets are mined."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from sentence_transformers import CrossEncoder

from steps.core.errors import UserError
from steps.core.tables import table_from_columns
from steps.rank.candidates import asked_queries, drawn, union
from steps.rank.params import CrossEncoderParams
from steps.retrieval.rankers import pair_scores
from steps.training.documents import check_documents, texts_of
from steps.training.triplets import refused_queries

QUERIES = 16384  # scored before their scores are written: texts of the documents that these name are in memory


@dataclass
class Scored:
    """How many queries and documents were scored, and between which scores."""

    queries: int = 0
    scores: int = 0
    least: float = math.inf
    largest: float = -math.inf

    def report(self) -> dict[str, float | int | None]:
        """As JSON; None for the bounds of nothing."""
        bounds = {"min": self.least, "max": self.largest} if self.scores else {"min": None, "max": None}
        return {"queries": self.queries, "scores": self.scores, **bounds}


def training_queries(queries: pa.Table, candidates: Path) -> dict[str, str]:
    """Texts of the training queries that have candidates, by id.

    Never a dev or test query, nor one that reads like one.
    """
    refused, asked = refused_queries(queries), asked_queries(candidates)
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    return {query_id: text for query_id, text in texts.items() if query_id in asked and query_id not in refused}


def drawn_queries(queries: Mapping[str, str], params: CrossEncoderParams) -> dict[str, str]:
    """At most `max_queries` of them (0 = all), drawn by seed."""
    return {query_id: queries[query_id] for query_id in drawn(queries, params.max_queries or len(queries), params.seed)}


def relevance_tables(
    ranker: CrossEncoder,
    queries: Mapping[str, str],
    ingest: Path,
    candidates: Path,
    params: CrossEncoderParams,
    scored: Scored,
) -> Iterator[pa.Table]:
    """The table `relevance` of some queries' candidates by any searcher, piece by piece; `scored` counts along.

    UserError for a score that is not finite, and for a candidate that the corpus lacks.
    """
    ids = list(queries)
    for start in range(0, len(ids), QUERIES):
        pools = union(candidates, ids[start : start + QUERIES], params.depth)
        rows = [(query_id, doc_id) for query_id, doc_ids in pools.items() for doc_id in doc_ids]
        named = {doc_id for _, doc_id in rows}
        texts = texts_of(ingest, named)
        check_documents(sorted(named), texts, ingest)
        pairs = [(queries[query_id], texts[doc_id]) for query_id, doc_id in rows]
        scores = pair_scores(
            ranker, pairs, precision=params.precision, batch_size=params.batch_size, what="score candidates"
        )
        if not np.isfinite(scores).all():
            raise UserError(
                f"rank: a query and a document have the score {scores[~np.isfinite(scores)][0]}; set the ranker's"
                " precision: fp32, or another base"
            )
        scored.queries += len(pools)
        scored.scores += len(rows)
        scored.least = min(scored.least, float(scores.min(initial=math.inf)))
        scored.largest = max(scored.largest, float(scores.max(initial=-math.inf)))
        yield table_from_columns("relevance", [[row[0] for row in rows], [row[1] for row in rows], scores.tolist()])
