"""Triplets <query, positive, hard negative> from clicks: one-hop, and multi-hop through query association."""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.engine import Engine
from steps.mine.hard_negatives import negative_pool, with_negative

ONE_HOP = "click_one_hop"
MULTI_HOP = "click_multi_hop"


class Triplets(NamedTuple):
    """What was mined, and what was not."""

    table: ir.Table
    """Columns of the table triplets."""
    dropped: dict[str, dict[str, int]]
    """By source, then reason: positives that became no triplet."""
    refused_negatives: dict[str, dict[str, int]]
    """By source, then reason: candidates that the guards refused."""


def click_triplets(
    engine: Engine,
    judged: ir.Table,
    associations: ir.Table,
    *,
    max_positives: int,
    max_negatives: int,
    multi_hop_weight: float,
    seed: int,
) -> Triplets:
    """Mine both click sources.

    judged: (query_id, doc_id, shown, clicks, text_key); associations: (query_id, other_query_id, strength).
    One-hop: a clicked document is a positive. Multi-hop: the clicked documents and the hard negatives of an associated
    query serve the query too, unless it clicked that document itself; a document reached through several associations
    comes through the strongest one that has a hard negative left.
    """
    clicked = engine.keep(judged.filter(judged.clicks > 0).select("query_id", "doc_id", "clicks", "text_key"))
    borrowed = associations.join(clicked.rename(other_query_id="query_id"), "other_query_id")
    positives = clicked.select("query_id", "doc_id", "text_key")
    positives = engine.keep(positives.union(borrowed.select("query_id", "doc_id", "text_key"), distinct=True))
    pool = negative_pool(engine, judged, positives, seed=seed, limit=max_negatives)

    by_clicks = ibis.window(group_by="query_id", order_by=[ibis.desc("clicks"), "doc_id"])
    ranked = clicked.mutate(place=ibis.row_number().over(by_clicks))
    lent = engine.keep(ranked.filter(ranked.place < max_positives).select("query_id", "clicks", positive_id="doc_id"))

    own = lent.mutate(giver_id=lent.query_id, strength=ibis.literal(0, "int64"))
    own = with_negative(engine, own, pool.table, positives, seed=seed)
    one_hop = own.filter(own.negative_id.notnull())

    reached = engine.keep(
        associations.join(lent.rename(other_query_id="query_id"), "other_query_id").rename(giver_id="other_query_id")
    )
    new = reached.anti_join(clicked.rename(positive_id="doc_id"), ["query_id", "positive_id"])
    hops = with_negative(engine, new, pool.table, positives, seed=seed)
    served = hops.filter(hops.negative_id.notnull())
    merged = engine.keep(_first(served, ["query_id", "positive_id"], 1))
    multi_hop = engine.keep(_first(merged, ["query_id"], max_positives))

    def count(table: ir.Table) -> int:
        return engine.number(table.count())

    dropped = {
        ONE_HOP: {"over_max_positives": count(clicked) - count(lent), "no_negative_left": count(own) - count(one_hop)},
        MULTI_HOP: {
            "clicked_by_the_query_itself": count(reached) - count(hops),
            "no_negative_left": count(hops) - count(served),
            "reached_by_a_stronger_association": count(served) - count(merged),
            "over_max_positives": count(merged) - count(multi_hop),
        },
    }
    refused = {
        ONE_HOP: pool.refused,
        MULTI_HOP: {
            "positive_of_the_query": engine.number(hops.refused_positive.sum()),
            "text_of_a_positive": engine.number(hops.refused_text.sum()),
        },
    }
    table = _rows(one_hop, ONE_HOP, 1.0).union(_rows(multi_hop, MULTI_HOP, multi_hop_weight))
    return Triplets(engine.keep(table), dropped, refused)


def _first(rows: ir.Table, group: list[str], count: int) -> ir.Table:
    """The first `count` rows of each group: strongest association, most clicked, then by id."""
    order = [ibis.desc("strength"), ibis.desc("clicks"), "giver_id", "positive_id"]
    ranked = rows.mutate(place=ibis.row_number().over(ibis.window(group_by=group, order_by=order)))
    return ranked.filter(ranked.place < count).drop("place")


def _rows(chosen: ir.Table, source: str, weight: float) -> ir.Table:
    """Chosen pairs as rows of the table triplets."""
    return chosen.select(
        "query_id",
        "positive_id",
        "negative_id",
        source=ibis.literal(source),
        via_query_id=ibis.literal("") if source == ONE_HOP else chosen.giver_id,
        weight=ibis.literal(weight, "float64").cast("float32"),
    )
