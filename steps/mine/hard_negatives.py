"""Hard negatives: candidates at random, guarded (ScalingNote, Section 4.1).

Candidates are what a query was shown and did not click, or what a ranker placed between two ranks. A document is never
a hard negative of a query when it, or a document of the same folded text, is a positive of that query by any source or
hop, nor when its text nearly equals that of the pair's own positive. Where the guards leave nothing, there is no
negative: a shortfall is counted, never filled.
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.catalogue import NEAR_DUPLICATE, SKETCH
from steps.mine.engine import Engine
from steps.mine.keys import mixed

PAIR = ["query", "source_query", "positive"]


class NegativePool(NamedTuple):
    """What each source query may offer as hard negatives."""

    table: ir.Table
    """(source_query, slot, negative, text_key): slots 0, 1, ... in random order, at most `limit` a source query."""
    sizes: ir.Table
    """(source_query, slots): how many it offers."""
    refused: int
    """Candidates left out because they are positives of the query itself, or have the text of one."""


def negative_pool(engine: Engine, candidates: ir.Table, forbidden: ir.Table, *, seed: int, limit: int) -> NegativePool:
    """Candidates whose text is that of no positive of the query; a random `limit` of them.

    candidates: (query, doc, text_key); forbidden: (query, text_key) of the positives by every source and hop.
    """
    clean = engine.keep(candidates.anti_join(forbidden, ["query", "text_key"]))
    order = ibis.window(group_by="query", order_by=[mixed(seed, clean.query, clean.doc), clean.doc])
    ranked = clean.mutate(slot=ibis.row_number().over(order))
    first = ranked.filter(ranked.slot < limit)
    table = engine.keep(first.select("slot", "text_key", source_query="query", negative="doc"))
    sizes = engine.keep(table.group_by("source_query").aggregate(slots=table.count()))
    return NegativePool(table, sizes, engine.number(candidates.count()) - engine.number(clean.count()))


class HardNegatives(NamedTuple):
    """Pairs with their hard negatives."""

    table: ir.Table
    """The pairs' columns and `negative`, a row for each; pairs for which the guards left none are missing."""
    refused: dict[str, int]
    """First draws that a guard refused, by reason; another candidate took the place where there was one."""


def draw_negatives(
    engine: Engine,
    pairs: ir.Table,
    pool: NegativePool,
    forbidden: ir.Table,
    documents: ir.Table,
    *,
    count: int,
    seed: int,
) -> HardNegatives:
    """`count` hard negatives, a row each, for each pair (query, source_query, positive, ...) from its source's pool.

    The draw begins at a random slot and takes the first slots from there that no guard refuses; fewer where there are
    no more. Nearly all pairs find their first one at once, so for one negative the whole pool is looked through for
    the others alone.
    """
    columns = [*pairs.columns, "negative"]
    sized = pairs.join(pool.sizes, "source_query")
    start = (mixed(seed, sized.query, sized.positive) % sized.slots).cast("int64")
    first = sized.mutate(slot=start, start=start).join(_slots(pool), ["source_query", "slot"])
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
    again = _with_similarity(unserved.join(_slots(pool), "source_query"), documents)
    free = again.filter(again.similarity < NEAR_DUPLICATE).anti_join(forbidden, ["query", "text_key"])
    distance = (free.slot - free.start + free.slots) % free.slots
    later = free.mutate(place=ibis.row_number().over(ibis.window(group_by=PAIR, order_by=distance)))
    chosen = later.filter(later.place < count).select(columns)
    return HardNegatives(engine.keep(served.union(chosen) if count == 1 else chosen), refused)


def _slots(pool: NegativePool) -> ir.Table:
    return pool.table.select("source_query", "negative", "text_key", slot=pool.table.slot.cast("int64"))


def _with_similarity(pairs: ir.Table, documents: ir.Table) -> ir.Table:
    """`pairs` with `similarity`: how many minima of the positive's and the negative's sketches are equal."""
    positive = documents.select(positive="doc", **{f"p_{name}": name for name in SKETCH})
    negative = documents.select(negative="doc", **{f"n_{name}": name for name in SKETCH})
    table = pairs.join(positive, "positive").join(negative, "negative")
    similarity = reduce(add, ((table[f"p_{name}"] == table[f"n_{name}"]).cast("int64") for name in SKETCH))
    return table.select(*pairs.columns, similarity=similarity)
