"""Query planner: the importance of each term of a query, S(q) of ScalingNote's Algorithm 1.

A planner gives one row (query, term, importance) for each distinct term of each query. The paper takes a score in
[0, 1] from its platform and says nothing of its scale. Here the importances of one query sum to 1: an importance is the
share of the query's meaning that the term carries, whatever the query's length, and at most 1 / threshold terms of a
query can lie above a threshold, which is what keeps the association joins linear.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.texts import words
from steps.mine.catalogue import key
from steps.mine.engine import Engine
from steps.mine.params import MineParams
from steps.mine.term_table import table_importances

if TYPE_CHECKING:
    from steps.mine.occlusion import OcclusionPlanner

Scores = dict[str, float]  # term -> importance, of one query

_TERMS = pa.schema([("query", pa.int64()), ("term", pa.int64()), ("dataset", pa.string()), ("word", pa.string())])
_IMPORTANCES = _TERMS.append(pa.field("importance", pa.float64()))
OCCLUSION_MODEL = "all-MiniLM-L6-v2"  # the bundled base; never the trained teacher, which learns from what is mined
_BATCH, _MAX_TOKENS = 64, 64  # of the planner occlusion: queries are short
_FIXED_POINT = 1_000_000  # idf in millionths: integer sums are equal on any engine, in any order of rows


def importances(engine: Engine, queries: ir.Table, params: MineParams, term_scores: ir.Table) -> ir.Table:
    """Importances by the planner that params name: (query, term, dataset, word, importance).

    queries: (query, dataset, text); term_scores: (term, score), read by the planner `table` alone. A term's key belongs
    to its data set, so that queries of two data sets never have a term in common.
    """
    if params.planner == "idf":
        return engine.keep(idf_importances(engine, query_terms(engine, queries)))
    if params.planner == "table":
        scores = {row["term"]: float(row["score"]) for row in engine.rows(term_scores).to_pylist()}
        if not scores:
            raise UserError(
                "params.yaml: mine.planner: 'table' needs term scores and ingest read none; name a TSV of term and"
                " score in ingest.term_scores"
            )
        return scored_terms(engine, queries, partial(table_importances, scores=scores))
    return scored_terms(engine, queries, _occlusion)


def query_terms(engine: Engine, queries: ir.Table) -> ir.Table:
    """Distinct terms of each query: one row (query, term, dataset, word)."""
    return engine.map_batches(queries.select("query", "dataset", "text"), _distinct_terms, _TERMS, "terms of queries")


def scored_terms(engine: Engine, queries: ir.Table, score: Callable[[list[str]], Iterable[Scores]]) -> ir.Table:
    """Importances by a function of query texts."""

    def convert(batch: pa.RecordBatch) -> pa.Table:
        importances = list(score(batch["text"].to_pylist()))
        values = pa.array([value for shares in importances for value in shares.values()], pa.float64())
        return _term_rows(batch, importances).append_column("importance", values)

    chosen = queries.select("query", "dataset", "text").order_by("text", "query")
    return engine.map_batches(chosen, convert, _IMPORTANCES, "importance of terms")


@lru_cache(maxsize=2**20)
def term_key(dataset: str, word: str) -> int:
    """Key of a word in a data set."""
    return key(f"{dataset}\0{word}")


def idf_importances(engine: Engine, terms: ir.Table) -> ir.Table:
    """Importance of a term = its idf divided by the sum over the query's terms.

    idf = ln(1 + (N - df + 1/2) / (df + 1/2)), N and df counted over the data set's queries: positive, and next to
    nothing for a word that every query holds, so that no list of stop words is needed.
    """
    sizes = terms.group_by("dataset").aggregate(total=terms.query.nunique())
    frequencies = terms.group_by("dataset", "term").aggregate(frequency=lambda t: t.count())
    counted = frequencies.join(sizes, "dataset")
    odds = (counted.total - counted.frequency + 0.5) / (counted.frequency + 0.5)
    idf = ibis.greatest(((odds + 1).ln() * _FIXED_POINT).round().cast("int64"), ibis.literal(1, "int64"))
    weighted = terms.join(engine.keep(counted.select("term", idf=idf)), "term")
    share = weighted.idf.cast("float64") / weighted.idf.sum().over(group_by="query").cast("float64")
    return weighted.select("query", "term", "dataset", "word", importance=share)


def _distinct_terms(batch: pa.RecordBatch) -> pa.Table:
    return _term_rows(batch, [list(dict.fromkeys(words(text))) for text in batch["text"].to_pylist()])


def _term_rows(batch: pa.RecordBatch, terms: Sequence[Collection[str]]) -> pa.Table:
    """A row for each term of each query, column by column: a log of ten million queries has fifty million terms."""
    rows = pa.array(np.repeat(np.arange(len(terms)), [len(query_terms) for query_terms in terms]), pa.int64())
    datasets, words = batch["dataset"].take(rows), [word for query_terms in terms for word in query_terms]
    keys = pa.array(map(term_key, datasets.to_pylist(), words), pa.int64())
    return pa.table([batch["query"].take(rows), keys, datasets, pa.array(words, pa.string())], schema=_TERMS)


@lru_cache(maxsize=1)
def _occlusion_planner() -> "OcclusionPlanner":
    from steps.mine.occlusion import OcclusionPlanner  # needs torch, and is needed by no other planner

    return OcclusionPlanner(OCCLUSION_MODEL, batch_size=_BATCH, max_length=_MAX_TOKENS)


def _occlusion(texts: list[str]) -> Iterable[Scores]:
    return _occlusion_planner().importances(texts)
