"""Relevance scores as a signal (ScalingNote, Section 4.1): the best is positive, ranks in (K, T] are candidates."""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.clicks import FIXED_POINT
from steps.mine.engine import Engine
from steps.mine.triplets import Signal


class Ranked(NamedTuple):
    """A ranker's scores of the training queries."""

    table: ir.Table
    """(query, doc, score, rank): rank is 1 for the best of a query; equal scores share the best rank among them."""
    scores: int
    """Rows of the relevance table."""
    dropped: dict[str, int]
    """Rows left out, by reason."""


def ranked_documents(engine: Engine, relevance: ir.Table, queries: ir.Table, documents: ir.Table) -> Ranked:
    """Rank each training query's documents by score; rows of other queries are counted."""
    joined = relevance.left_join(queries.select("query", "query_id", "split"), "query_id")
    joined = joined.select(relevance, "query", "split")
    joined = joined.left_join(documents.select("doc", "doc_id"), "doc_id").select(joined, "doc")
    split = joined.split.fill_null("unlabelled")  # the table of queries has only those of a split
    reason = ibis.cases((split != "train", split + "_query"), (joined.doc.isnull(), "unknown_document"), else_="")
    rows = engine.keep(joined.select("query", "doc", "score", reason=reason))
    counts = rows.group_by("reason").aggregate(rows=lambda t: t.count())
    by_reason = {row["reason"]: row["rows"] for row in engine.rows(counts).to_pylist()}
    used = rows.filter(rows.reason == "")
    rank = ibis.rank().over(ibis.window(group_by="query", order_by=ibis.desc("score")))
    table = engine.keep(used.select("query", "doc", "score", rank=rank.cast("int64") + 1))
    dropped = {name: by_reason[name] for name in sorted(by_reason) if name}
    return Ranked(table, sum(by_reason.values()), dropped)


def relevance_signal(engine: Engine, ranked: ir.Table, documents: ir.Table, *, skip: int, depth: int) -> Signal:
    """The best document of each query, and as candidates those ranked in (`skip`, `depth`].

    What lies between may be relevant too, so it is neither; so may what scores as high as any of it, or as the best. Of
    several best ones the first by key is taken.
    """
    texts = documents.select("doc", "text_key")
    first = ranked.filter(ranked["rank"] == 1).group_by("query").aggregate(doc=lambda t: t.doc.min())
    best = first.join(texts, "doc")
    unit = ibis.literal(FIXED_POINT, "int64")
    positives = engine.keep(best.select("query", "doc", "text_key", weight=unit, click_weight=unit))
    low = ranked.filter((ranked["rank"] > skip) & (ranked["rank"] <= depth)).join(texts, "doc")
    return Signal("relevance", positives, engine.keep(low.select("query", "doc", "text_key")))
