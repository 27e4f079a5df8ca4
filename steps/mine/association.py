"""Query association, Algorithm 1 of ScalingNote: which queries may lend their clicks to which others.

`click q1 <- q2` holds iff each of q1's top terms has an importance above the threshold in q2. Pairs are never compared:
each query that lends enumerates the sets of its terms above the threshold, and a query that receives is joined on the
set of its top terms.
"""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.engine import Engine

_GRID = 1_000_000  # strengths are integers, so that their order never depends on the order of a sum


class Associations(NamedTuple):
    """What Algorithm 1 found."""

    kept: ir.Table
    """(query_id, other_query_id, strength): query_id receives from other_query_id; at most `cap` rows a query_id.
    Strength is the sum over the top terms of their importance in other_query_id, in millionths."""
    top: ir.Table
    """(dataset, query_id, term): the terms that decide for a query that receives."""
    found: int
    """Associations before the cap."""


def click_associations(
    engine: Engine,
    importances: ir.Table,
    givers: ir.Table,
    *,
    threshold: float,
    top_terms: int,
    min_terms: int,
    cap: int,
) -> Associations:
    """Directed associations to every query of `importances` from the queries of `givers` (query_id).

    Queries of fewer than `min_terms` terms take no part. A query with more than `cap` associations keeps the
    strongest, equal ones by the other query's id. Associations never leave a data set.
    """
    long_enough = importances.mutate(size=importances.term.count().over(group_by="query_id"))
    long_enough = engine.keep(long_enough.filter(long_enough.size >= min_terms).drop("size"))
    top = engine.keep(_top(long_enough, top_terms))
    wanted = engine.keep(_wanted(top, top_terms))
    strong = long_enough.filter(long_enough.importance > threshold)
    strong = strong.semi_join(givers, "query_id").semi_join(top, ["dataset", "term"])
    offered = _offered(engine, strong, range(min(min_terms, top_terms), top_terms + 1), top_terms)
    key = ["dataset", *_term_columns(top_terms)]
    offered = engine.keep(offered.semi_join(wanted, key))
    found = _count(engine, wanted, offered, key)
    kept = engine.keep(_strongest(wanted, offered, key, cap))
    return Associations(kept, top.select("dataset", "query_id", "term"), found)


def _top(importances: ir.Table, count: int) -> ir.Table:
    """The `count` most important terms of each query, equal ones by the term; `slot` numbers them by the term."""
    by_importance = ibis.window(group_by="query_id", order_by=[ibis.desc("importance"), "term"])
    ranked = importances.mutate(place=ibis.row_number().over(by_importance))
    best = ranked.filter(ranked.place < count)
    slot = ibis.row_number().over(ibis.window(group_by="query_id", order_by="term"))
    return best.select("dataset", "query_id", "term", slot=slot)


def _term_columns(count: int) -> list[str]:
    return [f"term_{slot}" for slot in range(count)]


def _wanted(top: ir.Table, count: int) -> ir.Table:
    """One row a query that receives: its top terms side by side in alphabetical order, missing ones empty."""
    columns = {f"term_{slot}": top.term.max(where=top.slot == slot).fill_null("") for slot in range(count)}
    return top.group_by("dataset", "query_id").aggregate(**columns)


def _offered(engine: Engine, strong: ir.Table, sizes: range, count: int) -> ir.Table:
    """Every alphabetical set of `sizes` strong terms of a query that lends: (key..., other_query_id, strength)."""
    grains = (strong.importance * _GRID).round().cast("int64")
    single = engine.keep(strong.select("dataset", "term", other_query_id="query_id", grains=grains))
    sets = single.select("dataset", "other_query_id", term_0="term", strength="grains")
    offers = []
    for size in range(1, count + 1):
        if size > 1:
            last = f"term_{size - 2}"
            following = single.select("term", next_id="other_query_id", next_grains="grains")
            longer = sets.join(following, [sets.other_query_id == following.next_id, sets[last] < following.term])
            longer = longer.mutate(strength=longer.strength + longer.next_grains).drop("next_id", "next_grains")
            sets = longer.rename({f"term_{size - 1}": "term"})
        if size in sizes:
            missing = {name: ibis.literal("") for name in _term_columns(count)[size:]}
            filled = sets.mutate(**missing)
            offers.append(filled.select("dataset", *_term_columns(count), "other_query_id", "strength"))
    return ibis.union(*offers) if len(offers) > 1 else offers[0]


def _count(engine: Engine, wanted: ir.Table, offered: ir.Table, key: list[str]) -> int:
    """Number of associations without the cap, from the sizes of the groups that meet on a key."""
    receivers = wanted.group_by(key).aggregate(receivers=lambda t: t.count())
    lenders = offered.group_by(key).aggregate(lenders=lambda t: t.count())
    both = receivers.join(lenders, key)
    selves = wanted.rename(other_query_id="query_id").join(offered, [*key, "other_query_id"])
    return engine.number((both.receivers * both.lenders).sum()) - engine.number(selves.count())


def _strongest(wanted: ir.Table, offered: ir.Table, key: list[str], cap: int) -> ir.Table:
    """Join on the key, keeping the `cap` strongest other queries of each query.

    Strength depends on the key and the other query alone, so a key's `cap + 1` strongest (one may be the query itself)
    hold every survivor: the join makes at most `cap + 1` rows a query, however common the key is.
    """
    in_key = ibis.window(group_by=key, order_by=[ibis.desc("strength"), "other_query_id"])
    ranked = offered.mutate(place=ibis.row_number().over(in_key))
    ranked = ranked.filter(ranked.place <= cap).drop("place")
    pairs = wanted.join(ranked, key)
    pairs = pairs.filter(pairs.query_id != pairs.other_query_id)
    in_query = ibis.window(group_by="query_id", order_by=[ibis.desc("strength"), "other_query_id"])
    numbered = pairs.mutate(place=ibis.row_number().over(in_query))
    return numbered.filter(numbered.place < cap).select("query_id", "other_query_id", "strength")
