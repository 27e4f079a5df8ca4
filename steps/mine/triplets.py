"""Triplets <query, positive, hard negative> of one signal: one-hop, and multi-hop through query association."""

import sys
from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.engine import Engine
from steps.mine.hard_negatives import HardNegatives, draw_negatives, negative_pool

MAX_NEGATIVES = 32  # documents that a query offers, drawn from what it was shown and not clicked


class Signal(NamedTuple):
    """What clicks, or a ranker, say of the training queries."""

    name: str
    """`click` or `relevance`: triplets are of the sources <name>_one_hop and <name>_multi_hop."""
    positives: ir.Table
    """(query, doc, text_key, weight, click_weight): `weight` orders a query's positives, `click_weight`, the mean of
    its clicks, is that of triplets; both fixed-point."""
    candidates: ir.Table
    """(query, doc, text_key): what may become a hard negative."""


class Triplets(NamedTuple):
    """What was mined, and what was not."""

    table: ir.Table
    """(query, positive, negative, source, via, weight); `via` is null for one-hop."""
    positives: ir.Table
    """(query, doc, text_key): all positives of each query, by both hops, before any limit."""
    dropped: dict[str, dict[str, int]]
    """By source, then reason: positives that became no triplet."""
    refused_negatives: dict[str, dict[str, int]]
    """By source, then reason: candidates that the guards refused."""
    positive_count: int
    """Positives of both hops before `max_positives`."""


def all_positives(engine: Engine, signal_positives: ir.Table, associations: ir.Table) -> ir.Table:
    """(query, doc, text_key): a query's own positives and those of every query associated with it; rows may repeat."""
    own_positives = signal_positives.select("query", "doc", "text_key")
    other_positives = own_positives.rename(other_query="query")
    borrowed = associations.join(other_positives, "other_query").select("query", "doc", "text_key")
    return engine.keep(own_positives.union(borrowed))


def mine_triplets(
    engine: Engine,
    signal: Signal,
    associations: ir.Table,
    guarded: ir.Table,
    documents: ir.Table,
    *,
    max_positives: int,
    max_negatives: int,
    negatives_per_positive: int,
    multi_hop_weight: float,
    seed: int,
) -> Triplets:
    """Mine both hops of one signal.

    associations: (query, other_query, strength); guarded: (query, text_key), what other signals call relevant, which is
    no negative either; documents: (doc, sketch_0...). Multi-hop: the positives and the hard negatives of an associated
    query serve the query too, unless the document is a positive of its own; a document that several source
    queries have comes through the strongest association whose source query has hard negatives. max_positives 0: all.
    """
    positives = all_positives(engine, signal.positives, associations)
    forbidden = positives.select("query", "text_key").union(guarded.select("query", "text_key"))
    pool = negative_pool(engine, signal.candidates, forbidden, seed=seed, limit=max_negatives)

    by_weight = ibis.window(group_by="query", order_by=[ibis.desc("weight"), "doc"])
    ranked = signal.positives.mutate(place=ibis.row_number().over(by_weight))
    best = ranked.filter(ranked.place < max_positives) if max_positives else ranked
    best = engine.keep(best.select("query", "weight", "click_weight", positive="doc"))

    own_pairs = best.mutate(source_query=best.query)
    one_hop = draw_negatives(engine, own_pairs, pool, forbidden, documents, count=negatives_per_positive, seed=seed)

    able = best.semi_join(pool.sizes.rename(query="source_query"), "query")
    unable = best.anti_join(able, "query").rename(source_query="query")
    links = associations.rename(source_query="other_query")
    reached = links.join(able.rename(source_query="query"), "source_query")
    new = engine.keep(reached.anti_join(signal.positives.rename(positive="doc"), ["query", "positive"]))
    merged = engine.keep(_first(new, ["query", "positive"], 1))
    chosen = engine.keep(_first(merged, ["query"], max_positives)) if max_positives else merged
    pairs = chosen.drop("strength")
    multi_hop = draw_negatives(engine, pairs, pool, forbidden, documents, count=negatives_per_positive, seed=seed)

    def count(table: ir.Table) -> int:
        return engine.number(table.count())

    def served(negatives: HardNegatives) -> int:
        return count(negatives.table.select("query", "source_query", "positive").distinct())

    names = [f"{signal.name}_one_hop", f"{signal.name}_multi_hop"]
    dropped = {
        names[0]: {
            "over_max_positives": count(signal.positives) - count(best),
            "no_negative_left": count(best) - served(one_hop),
        },
        names[1]: {
            "source_query_without_negatives": count(links.join(unable, "source_query")),
            "positive_of_the_query_itself": count(reached) - count(new),
            "reached_by_a_stronger_association": count(new) - count(merged),
            "over_max_positives": count(merged) - count(chosen),
            "no_negative_left": count(chosen) - served(multi_hop),
        },
    }
    refused = {
        names[0]: {"candidate_is_a_positive": pool.refused} | one_hop.refused,
        names[1]: multi_hop.refused,
    }
    own_rows = _rows(engine, one_hop.table, names[0], 1.0)
    table = own_rows.union(_rows(engine, multi_hop.table, names[1], multi_hop_weight))
    return Triplets(engine.keep(table), positives, dropped, refused, count(signal.positives) + count(merged))


def tell_unused(mined: Triplets, signal: str, knob: str) -> None:
    """A line on stderr where the cap on a query's positives leaves out more than half of them."""
    left_out = sum(reasons["over_max_positives"] for reasons in mined.dropped.values())
    if 2 * left_out > mined.positive_count:
        print(
            f"mine@{signal}: WARNING: {mined.positive_count - left_out:,} of {mined.positive_count:,} positives are"
            f" mined (mine.{knob}); raise it where they are to be trusted, 0 takes all",
            file=sys.stderr,
        )


def _first(rows: ir.Table, group: list[str], count: int) -> ir.Table:
    """The first `count` rows of each group: strongest association, heaviest, then by key."""
    order = [ibis.desc("strength"), ibis.desc("weight"), "source_query", "positive"]
    ranked = rows.mutate(place=ibis.row_number().over(ibis.window(group_by=group, order_by=order)))
    return ranked.filter(ranked.place < count).drop("place")


def _rows(engine: Engine, chosen: ir.Table, source: str, weight: float) -> ir.Table:
    """Chosen pairs as triplets; weights follow `click_weight`, and the mean of a source is `weight`."""
    via = ibis.null("int64") if source.endswith("one_hop") else chosen.source_query
    rows, total = engine.number(chosen.count()), engine.number(chosen.click_weight.sum())
    factor = weight * rows / max(total, 1)
    return chosen.select(
        "query",
        "positive",
        "negative",
        source=ibis.literal(source),
        via=via,
        weight=chosen.click_weight * ibis.literal(factor),
    )
