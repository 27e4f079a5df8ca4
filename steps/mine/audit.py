"""The leak audit in the log's own engine: no evaluation query, nor a query of its text, may train or be a source."""

import ibis
import ibis.expr.types as ir

from slimtower.common.errors import UserError
from steps.core.leakage import EVALUATION_SPLITS, EXAMPLES, Leak, refuse_leaks
from steps.mine.engine import Engine


def audit(engine: Engine, used: ir.Table, queries: ir.Table, source: str) -> dict[str, int]:
    """Compare the queries of associations and triplets with the evaluation queries; UserError when any leaks.

    used: (query), distinct; queries: as `keyed_queries`. UserError, too, if one belongs to no split that trains.
    """
    mine = engine.keep(used.join(queries, "query"))
    evaluation = queries.filter(queries.split.isin(list(EVALUATION_SPLITS)))
    compared = engine.number(mine.count())
    leaks = mine.join(evaluation.select("text_key", twin_id="query_id"), "text_key")
    first = leaks.select("query_id", "text", "twin_id").order_by("query_id", "twin_id").limit(EXAMPLES)
    examples = engine.rows(first).to_pylist()
    refuse_leaks(
        [Leak(source, row["text"], row["twin_id"]) for row in examples],
        engine.number(leaks.query_id.nunique()) if examples else 0,
        compared,
        "give queries of equal text the same split in ingest",
    )
    strangers = engine.rows(mine.filter(mine.split != "train").order_by("query_id").limit(1)).to_pylist()
    if strangers:
        row = strangers[0]
        raise UserError(
            f"{source}: {row['query_id']} ({row['text'][:80]!r}) of the split {row['split']!r} trains; run `ingest` and"
            " `mine` again"
        )
    return {"evaluation_queries": engine.number(evaluation.count()), "queries_compared": compared, "leaks": 0}


def used_queries(associations: ir.Table, triplets: ir.Table) -> ir.Table:
    """(query): every query of an association or a triplet."""
    columns = [
        associations.select("query"),
        associations.select(query="other_query"),
        triplets.select("query"),
        triplets.filter(triplets.via.notnull()).select(query="via"),
    ]
    return ibis.union(*columns).distinct()
