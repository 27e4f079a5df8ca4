"""Triplets <query, positive, hard negative> of one signal: one-hop, and multi-hop through query association.

Hard negatives are candidates at random, guarded (ScalingNote, Section 4.1). Candidates are what a query was shown and
did not click, or what a ranker placed between two ranks. A document is never a hard negative of a query when it, or a
document of the same folded text, is a positive of that query by any source or hop, nor when its text nearly equals that
of the pair's own positive. Where the guards leave nothing, there is no negative: a shortfall is counted, never filled.
"""

import sys
from functools import reduce
from operator import add
from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.catalogue import NEAR_DUPLICATE, SEED, SKETCH, mixed
from steps.mine.engine import Engine, numbered
from steps.mine.params import MineParams

FIXED_POINT = 1_000_000  # the weight of one click: sums of integers do not depend on their order
MAX_NEGATIVES = 32  # documents that a query offers, drawn from what it was shown and not clicked
PAIR = ["query", "source_query", "positive"]


class Signal(NamedTuple):
    """What clicks, judgements or a ranker say of the training queries."""

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
    params: MineParams,
) -> Triplets:
    """Mine both hops of one signal.

    associations: (query, other_query, strength); guarded: (query, text_key), what other signals call relevant;
    documents: (doc, sketch_0...). Multi-hop: the positives and the hard negatives of an associated query serve the
    query too, unless the document is a positive of its own; a document that several source queries have comes through
    the strongest association whose source query has hard negatives.
    """
    limit, count_of_each = params.max_positives, params.negatives_per_positive
    positives = all_positives(engine, signal.positives, associations)
    forbidden = positives.select("query", "text_key").union(guarded.select("query", "text_key"))
    pool = negative_pool(engine, signal.candidates, forbidden)

    ranked = numbered(signal.positives, "query", [ibis.desc("weight"), "doc"])
    best = ranked.filter(ranked.place < limit) if limit else ranked
    best = engine.keep(best.select("query", "weight", "click_weight", positive="doc"))
    own_pairs = best.mutate(source_query=best.query)
    one_hop, one_hop_refused = draw_negatives(engine, own_pairs, pool, forbidden, documents, count_of_each)

    able = best.semi_join(pool.sizes.rename(query="source_query"), "query")
    unable = best.anti_join(able, "query").rename(source_query="query")
    links = associations.rename(source_query="other_query")
    reached = links.join(able.rename(source_query="query"), "source_query")
    new = engine.keep(reached.anti_join(signal.positives.rename(positive="doc"), ["query", "positive"]))
    merged = engine.keep(_first(new, ["query", "positive"], 1))
    chosen = engine.keep(_first(merged, ["query"], limit)) if limit else merged
    borrowed_pairs = chosen.drop("strength")
    multi_hop, multi_hop_refused = draw_negatives(engine, borrowed_pairs, pool, forbidden, documents, count_of_each)

    def count(table: ir.Table) -> int:
        return engine.number(table.count())

    def served(triplets: ir.Table) -> int:
        return count(triplets.select(PAIR).distinct())

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
    refused = {names[0]: {"candidate_is_a_positive": pool.refused} | one_hop_refused, names[1]: multi_hop_refused}
    own_rows = _rows(engine, one_hop, names[0], 1.0)
    table = own_rows.union(_rows(engine, multi_hop, names[1], params.multi_hop_weight))
    return Triplets(engine.keep(table), positives, dropped, refused, count(signal.positives) + count(merged))


def tell_unused(mined: Triplets, signal: str) -> None:
    """A line on stderr where the cap on a query's positives leaves out more than half of them."""
    left_out = sum(reasons["over_max_positives"] for reasons in mined.dropped.values())
    if 2 * left_out > mined.positive_count:
        print(
            f"mine@{signal}: WARNING: {mined.positive_count - left_out:,} of {mined.positive_count:,} positives are"
            " mined (mine.max_positives); raise it where they are to be trusted, 0 takes all",
            file=sys.stderr,
        )


def _first(rows: ir.Table, group: list[str], count: int) -> ir.Table:
    """The first `count` rows of each group: strongest association, heaviest, then by key."""
    order = [ibis.desc("strength"), ibis.desc("weight"), "source_query", "positive"]
    ranked = numbered(rows, group, order)
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


class NegativePool(NamedTuple):
    """What each source query may offer as hard negatives."""

    table: ir.Table
    """(text_key, source_query, negative, slot): slots 0, 1, ... in random order, at most MAX_NEGATIVES of a query."""
    sizes: ir.Table
    """(source_query, slots): how many it offers."""
    refused: int
    """Candidates left out because they are positives of the query itself, or have the text of one."""


def negative_pool(engine: Engine, candidates: ir.Table, forbidden: ir.Table) -> NegativePool:
    """Candidates whose text is that of no positive of the query; a random MAX_NEGATIVES of them.

    candidates: (query, doc, text_key); forbidden: (query, text_key) of the positives by every source and hop.
    """
    clean = engine.keep(candidates.anti_join(forbidden, ["query", "text_key"]))
    ranked = numbered(clean, "query", [mixed(SEED, clean.query, clean.doc), clean.doc])
    first = ranked.filter(ranked.place < MAX_NEGATIVES)
    table = first.select("text_key", source_query="query", negative="doc", slot=first.place.cast("int64"))
    table = engine.keep(table)
    sizes = engine.keep(table.group_by("source_query").aggregate(slots=table.count()))
    return NegativePool(table, sizes, engine.number(candidates.count()) - engine.number(clean.count()))


def draw_negatives(
    engine: Engine, pairs: ir.Table, pool: NegativePool, forbidden: ir.Table, documents: ir.Table, count: int
) -> tuple[ir.Table, dict[str, int]]:
    """`count` hard negatives, a row each, for each pair (query, source_query, positive, ...) from its source's pool.

    The draw begins at a random slot and takes the first slots from there that no guard refuses; fewer if there are no
    more, and pairs without any have no row. Nearly all pairs find their first one at once, so for one negative the
    whole pool is searched for the others alone. Also returns the first draws that a guard refused, by reason.
    """
    columns = [*pairs.columns, "negative"]
    sized = pairs.join(pool.sizes, "source_query")
    start = (mixed(SEED, sized.query, sized.positive) % sized.slots).cast("int64")
    first = sized.mutate(slot=start, start=start).join(pool.table, ["source_query", "slot"])
    first = engine.keep(_with_similarity(first, documents))
    allowed = engine.keep(first.anti_join(forbidden, ["query", "text_key"]))
    served = allowed.filter(allowed.similarity < NEAR_DUPLICATE).select(columns)
    copies = allowed.filter(allowed.similarity >= NEAR_DUPLICATE)
    positives = engine.keep(first.semi_join(forbidden, ["query", "text_key"]))
    refused = {
        "near_duplicate": engine.number(copies.count()),
        "positive_of_the_query": engine.number(positives.count()),
    }

    open_pairs = [*pairs.columns, "slots", "start"]
    unserved = positives.select(open_pairs).union(copies.select(open_pairs)) if count == 1 else first.select(open_pairs)
    again = _with_similarity(unserved.join(pool.table, "source_query"), documents)
    free = again.filter(again.similarity < NEAR_DUPLICATE).anti_join(forbidden, ["query", "text_key"])
    distance = (free.slot - free.start + free.slots) % free.slots
    later = numbered(free, PAIR, distance)
    chosen = later.filter(later.place < count).select(columns)
    return engine.keep(served.union(chosen) if count == 1 else chosen), refused


def _with_similarity(pairs: ir.Table, documents: ir.Table) -> ir.Table:
    """`pairs` with `similarity`: how many minima of the positive's and the negative's sketches are equal."""
    positive = documents.select(positive="doc", **{f"p_{name}": name for name in SKETCH})
    negative = documents.select(negative="doc", **{f"n_{name}": name for name in SKETCH})
    table = pairs.join(positive, "positive").join(negative, "negative")
    similarity = reduce(add, ((table[f"p_{name}"] == table[f"n_{name}"]).cast("int64") for name in SKETCH))
    return table.select(*pairs.columns, similarity=similarity)


def judged_positives(engine: Engine, qrels: ir.Table, train: ir.Table, documents: ir.Table) -> ir.Table:
    """(query, doc, text_key): documents judged relevant to a training query."""
    return _keyed(engine, qrels.filter(qrels.grade > 0).select("query_id", "doc_id"), train, documents)


def triplet_positives(engine: Engine, triplets: ir.Table, train: ir.Table, documents: ir.Table) -> ir.Table:
    """(query, doc, text_key): positives of triplets (query_id, positive_id, ...) of training queries."""
    return _keyed(engine, triplets.select("query_id", doc_id="positive_id"), train, documents)


def click_positives(
    engine: Engine, impressions: ir.Table, associations: ir.Table, train: ir.Table, documents: ir.Table
) -> ir.Table:
    """(query, doc, text_key): the click positives of each training query by both hops."""
    clicked = _keyed(engine, impressions.filter(impressions.clicked).select("query_id", "doc_id"), train, documents)
    ids = train.select("query", "query_id")
    other_ids = ids.select(other_query="query", other_query_id="query_id")
    pairs = associations.join(ids, "query_id").join(other_ids, "other_query_id").select("query", "other_query")
    return all_positives(engine, clicked, pairs)


def irrelevant(engine: Engine, qrels: ir.Table, triplets: ir.Table, train: ir.Table, documents: ir.Table) -> ir.Table:
    """(query, doc, text_key): documents judged irrelevant to a training query, or given as its negatives."""
    judged = qrels.filter(qrels.grade <= 0).select("query_id", "doc_id")
    given_negatives = triplets.filter(triplets.source == "given").select("query_id", doc_id="negative_id")
    return _keyed(engine, judged.union(given_negatives), train, documents)


def named_documents(qrels: ir.Table, triplets: ir.Table) -> list[ir.Table]:
    """Tables (doc_id) of the documents that judgements and triplets name."""
    sides = [triplets.select(doc_id=side) for side in ("positive_id", "negative_id")]
    return [qrels.filter(qrels.split == "train").select("doc_id"), *sides]


def _keyed(engine: Engine, pairs: ir.Table, train: ir.Table, documents: ir.Table) -> ir.Table:
    """(query_id, doc_id) of training queries by their keys, and of every other training query of the same text."""
    texts = documents.select("doc", "doc_id", "text_key")
    ids = train.select("query_id", query_text="text_key")
    relevant = pairs.join(ids, "query_id").join(texts, "doc_id").select("query_text", "doc", "text_key").distinct()
    return engine.keep(
        relevant.join(train.select("query", query_text="text_key"), "query_text").select("query", "doc", "text_key")
    )
