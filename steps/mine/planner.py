"""Query planner: the importance of each term of a query, S(q) of ScalingNote's Algorithm 1.

A planner is a function that gives one row (dataset, query_id, term, importance) for each distinct term of each query.
The paper takes a score in [0, 1] from its platform and says nothing of its scale. Here the importances of one query sum
to 1: an importance is the share of the query's meaning that the term carries, whatever the query's length, and at most
1 / threshold terms of a query can lie above a threshold, which is what keeps the association joins linear.
"""

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from steps.core.texts import words
from steps.mine.engine import Engine

_TERMS = pa.schema([("dataset", pa.string()), ("query_id", pa.string()), ("term", pa.string())])
_GRID = 1_000_000  # idf is rounded to millionths: integer sums are equal on any engine, in any order of rows


def query_terms(engine: Engine, queries: ir.Table) -> ir.Table:
    """Distinct terms of each query: one row (dataset, query_id, term)."""

    def convert(batch: pa.RecordBatch) -> pa.Table:
        datasets, ids, texts = (batch.column(name).to_pylist() for name in ("dataset", "query_id", "text"))
        rows = [
            (dataset, query_id, term)
            for dataset, query_id, text in zip(datasets, ids, texts, strict=True)
            for term in dict.fromkeys(words(text))
        ]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.table([pa.array(column, pa.string()) for column in columns], schema=_TERMS)

    return engine.map_batches(queries.select("dataset", "query_id", "text"), convert, _TERMS, "terms of queries")


def idf_importances(terms: ir.Table) -> ir.Table:
    """Importance of a term = its idf divided by the sum over the query's terms.

    idf = ln(1 + (N - df + 1/2) / (df + 1/2)), N and df counted over the data set's queries: positive, and next to
    nothing for a word that every query holds, so that no list of stop words is needed.
    """
    sizes = terms.group_by("dataset").aggregate(total=terms.query_id.nunique())
    frequencies = terms.group_by("dataset", "term").aggregate(frequency=lambda t: t.count())
    counted = frequencies.join(sizes, "dataset")
    odds = (counted.total - counted.frequency + 0.5) / (counted.frequency + 0.5)
    grains = ibis.greatest(((odds + 1).ln() * _GRID).round().cast("int64"), ibis.literal(1, "int64"))
    weighted = terms.join(counted.select("dataset", "term", grains=grains), ["dataset", "term"])
    share = weighted.grains.cast("float64") / weighted.grains.sum().over(group_by="query_id").cast("float64")
    return weighted.select("dataset", "query_id", "term", importance=share)
