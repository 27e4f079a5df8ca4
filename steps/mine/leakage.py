"""Leakage audit: no evaluation query, nor a query of its text, may train or lend."""

import ibis
import ibis.expr.types as ir

from steps.core.errors import UserError
from steps.core.leakage import EVALUATION_SPLITS
from steps.mine.engine import Engine


def audit(engine: Engine, used: ir.Table, queries: ir.Table, source: str) -> dict[str, int]:
    """Compare the queries of associations and triplets with the evaluation queries; UserError when any leaks.

    used: (query), distinct; queries: (query, text_key, query_id, split, text). A query leaks when its split is not
    train, or when its folded text is that of a dev or test query.
    """
    mine = engine.keep(used.join(queries, "query"))
    evaluation = queries.filter(queries.split.isin(list(EVALUATION_SPLITS)))
    strangers = mine.filter(mine.split != "train")
    twins = evaluation.select("text_key", twin_id="query_id")
    twins = mine.join(twins, "text_key").filter(lambda t: t.query_id != t.twin_id)
    leaks = strangers.select("query_id", "text", twin_id="query_id").union(twins.select("query_id", "text", "twin_id"))
    found = engine.rows(leaks.order_by("query_id", "twin_id").limit(1)).to_pylist()
    if found:
        row, count = found[0], engine.number(leaks.query_id.nunique())
        what = "is no training query" if row["query_id"] == row["twin_id"] else f"= {row['twin_id']}"
        raise UserError(
            f"{source}: {count} queries of the triplets have the text of an evaluation query, first {row['query_id']}"
            f" {what} ({row['text'][:80]!r}); give queries of equal text the same split in ingest"
        )
    return {
        "evaluation_queries": engine.number(evaluation.count()),
        "queries_compared": engine.number(mine.count()),
        "leaks": 0,
    }


def used_queries(associations: ir.Table, triplets: ir.Table) -> ir.Table:
    """(query): every query that receives, lends or trains."""
    columns = [
        associations.select("query"),
        associations.select(query="other_query"),
        triplets.select("query"),
        triplets.filter(triplets.via.notnull()).select(query="via"),
    ]
    return ibis.union(*columns).distinct()
