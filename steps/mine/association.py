"""Query association, Algorithm 1 of ScalingNote: which queries' documents also serve which others.

`click q1 <- q2` holds iff each of q1's top terms has an importance above the threshold in q2. Relevance association
holds iff that is so both ways (with more top terms). Pairs are never compared: each source query q2 enumerates
the sets of its terms above the threshold, and each target query q1 is joined on the set of its top terms.
"""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from slimtower.common.errors import UserError
from steps.mine.engine import Engine, numbered

MIN_TERMS = 2  # distinct ones; queries of fewer take no part
_FIXED_POINT = 1_000_000  # strengths are fixed-point integers: their order never depends on the order of a sum
_NONE = -1  # the key of no term
_BY_STRENGTH = [ibis.desc("strength"), "other_query"]
_MOST_PAIRS = 1_000_000_000  # which mutual associations must look at, one by one


class Associations(NamedTuple):
    """The associations of Algorithm 1."""

    strongest: ir.Table
    """(query, other_query, strength): target and source query; at most `cap` rows a target.
    Strength is the sum over the top terms of their importance in other_query, in millionths; both ways added up where
    the association is mutual."""
    top: ir.Table
    """(query, term): the terms that decide for a target query."""
    total: int
    """Associations before the cap."""


def click_associations(
    engine: Engine,
    importances: ir.Table,
    sources: ir.Table,
    *,
    threshold: float,
    top_terms: int,
    cap: int,
    min_terms: int = MIN_TERMS,
) -> Associations:
    """Directed associations to every query of `importances` from the queries of `sources` (query).

    importances: (query, term, importance). Queries of fewer than `min_terms` terms take no part. A query with more than
    `cap` associations keeps the strongest, equal ones by the other query's key.
    """
    top, target_sets, offered = _sets(engine, importances, sources, threshold, top_terms, min_terms)
    key = _term_columns(top_terms)
    strongest = engine.keep(_strongest(engine, target_sets, offered, key, cap))
    return Associations(strongest, top, _count(engine, target_sets, offered, key))


def relevance_associations(
    engine: Engine,
    importances: ir.Table,
    sources: ir.Table,
    *,
    threshold: float,
    top_terms: int,
    cap: int,
    min_terms: int = MIN_TERMS,
) -> Associations:
    """Mutual associations of queries of `sources` with all of `importances`; arguments as in `click_associations`."""
    everyone = importances.select("query").distinct()
    top, target_sets, offered = _sets(engine, importances, everyone, threshold, top_terms, min_terms)
    key = _term_columns(top_terms)
    from_sources = offered.semi_join(sources.rename(other_query="query"), "other_query")
    directed = _count(engine, target_sets, from_sources, key)
    if directed > _MOST_PAIRS:
        raise UserError(
            f"params.yaml: mine.relevance_threshold {threshold:g} gives {directed:,} one-way associations, more than"
            f" {_MOST_PAIRS:,}; raise it"
        )
    pairs = target_sets.join(from_sources, key)
    pairs = engine.keep(pairs.filter(pairs.query != pairs.other_query).select("query", "other_query", "strength"))
    back_to = target_sets.semi_join(pairs.select(query="other_query"), "query")
    back = back_to.join(offered.semi_join(pairs.select(other_query="query"), "other_query"), key)
    returned = back.select(query="other_query", other_query="query", back="strength")
    mutual = pairs.join(returned, ["query", "other_query"])
    mutual = engine.keep(mutual.select("query", "other_query", strength=mutual.strength + mutual.back))
    ranked = numbered(mutual, "query", _BY_STRENGTH)
    strongest = engine.keep(ranked.filter(ranked.place < cap).drop("place"))
    return Associations(strongest, top, engine.number(mutual.count()))


def _sets(
    engine: Engine, importances: ir.Table, sources: ir.Table, threshold: float, top_terms: int, min_terms: int
) -> tuple[ir.Table, ir.Table, ir.Table]:
    """top (query, term); target_sets (term_0..., query); offered (term_0..., other_query, strength)."""
    sized = importances.select("query", "term", "importance", size=importances.term.count().over(group_by="query"))
    ranked = numbered(sized, "query", [ibis.desc("importance"), "term"])
    ranked = engine.keep(ranked.filter(ranked.size >= min_terms).drop("size"))
    best = ranked.filter(ranked.place < top_terms).select("query", "term")
    top = engine.keep(numbered(best, "query", "term"))
    in_slot = {  # of a target query its top terms side by side, in the order of their keys
        name: ibis.ifelse(top.place == slot, top.term, ibis.literal(_NONE, "int64")).max()
        for slot, name in enumerate(_term_columns(top_terms))
    }
    target_sets = engine.keep(top.group_by("query").aggregate(**in_slot))
    strong = ranked.filter(ranked.importance > threshold)
    strong = strong.semi_join(sources, "query").semi_join(top, "term")
    offered = _offered(engine, strong, range(min(min_terms, top_terms), top_terms + 1), top_terms)
    offered = engine.keep(offered.semi_join(target_sets, _term_columns(top_terms)))
    return top.select("query", "term"), target_sets, offered


def _term_columns(count: int) -> list[str]:
    return [f"term_{slot}" for slot in range(count)]


def _offered(engine: Engine, strong: ir.Table, sizes: range, count: int) -> ir.Table:
    """Every ordered set of `sizes` strong terms of a source query: (term_0..., other_query, strength)."""
    fixed = (strong.importance * _FIXED_POINT).round().cast("int64")
    single = engine.keep(strong.select("term", other_query="query", importance=fixed))
    sets = single.select("other_query", term_0="term", strength="importance")
    offers = []
    for size in range(1, count + 1):
        if size > 1:
            last = f"term_{size - 2}"
            following = single.select("term", next_query="other_query", next_importance="importance")
            longer = sets.join(following, [sets.other_query == following.next_query, sets[last] < following.term])
            longer = longer.mutate(strength=longer.strength + longer.next_importance)
            longer = longer.drop("next_query", "next_importance")
            sets = longer.rename({f"term_{size - 1}": "term"})
        if size in sizes:
            missing = {name: ibis.literal(_NONE, "int64") for name in _term_columns(count)[size:]}
            offers.append(sets.mutate(**missing).select(*_term_columns(count), "other_query", "strength"))
    return ibis.union(*offers) if len(offers) > 1 else offers[0]


def _count(engine: Engine, target_sets: ir.Table, offered: ir.Table, key: list[str]) -> int:
    """Number of associations without the cap, from the sizes of the groups that meet on a key."""
    targets = target_sets.group_by(key).aggregate(targets=lambda t: t.count())
    sources = offered.group_by(key).aggregate(sources=lambda t: t.count())
    both = targets.join(sources, key)
    selves = target_sets.rename(other_query="query").semi_join(offered, [*key, "other_query"])
    return engine.number((both.targets * both.sources).sum()) - engine.number(selves.count())


def _strongest(engine: Engine, target_sets: ir.Table, offered: ir.Table, key: list[str], cap: int) -> ir.Table:
    """Join on the key, keeping the `cap` strongest other queries of each query.

    Strength depends on the key and the other query alone, so a key's `cap + 1` strongest (one may be the query itself)
    hold every survivor: the join makes at most `cap + 1` rows a query, however common the key is.
    """
    ranked = numbered(offered, key, _BY_STRENGTH)
    ranked = engine.keep(ranked.filter(ranked.place <= cap))
    itself = ranked.select(*key, query="other_query", own_place="place")
    placed = target_sets.left_join(itself, [*key, "query"]).select(target_sets, "own_place")
    pairs = placed.join(ranked, key)
    pairs = pairs.filter(pairs.query != pairs.other_query)
    behind = (pairs.own_place < pairs.place).cast("int64").fill_null(0)  # the query itself takes no place
    return pairs.filter(pairs.place - behind < cap).select("query", "other_query", "strength")
