"""Hard negatives by the click rule (ScalingNote, Section 4.1): exposed but not clicked, one at random, guarded.

A document is never a hard negative of a query when it is a positive of that query by any source or hop, or when its
folded text is that of such a positive. "At random" is the least digest of (seed, ids): the same on every run and on
every engine.
"""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.engine import Engine


class NegativePool(NamedTuple):
    """What each query may offer as hard negatives."""

    table: ir.Table
    """(giver_id, negative_id, text_key): at most `limit` rows a giver."""
    refused: dict[str, int]
    """Exposed, not clicked documents left out, by reason."""


def digest(seed: int, *columns: ir.StringColumn) -> ir.StringColumn:
    """Hex digest of the seed and of ids, the deterministic stand-in for a random number."""
    text = ibis.literal(f"{seed}")
    for column in columns:
        text = text + "|" + column
    return text.hexdigest("md5")


def negative_pool(engine: Engine, judged: ir.Table, positives: ir.Table, *, seed: int, limit: int) -> NegativePool:
    """Documents that each query was shown, did not click, and has no positive like; a random `limit` of them.

    judged: (query_id, doc_id, clicks, text_key); positives: (query_id, doc_id, text_key) by every source and hop.
    """
    ignored = judged.filter(judged.clicks == 0)
    others = engine.keep(ignored.anti_join(positives, ["query_id", "doc_id"]))
    clean = engine.keep(others.anti_join(positives, ["query_id", "text_key"]))
    before, between, after = (engine.number(table.count()) for table in (ignored, others, clean))
    order = ibis.window(group_by="query_id", order_by=[digest(seed, clean.query_id, clean.doc_id), clean.doc_id])
    ranked = clean.mutate(place=ibis.row_number().over(order))
    table = ranked.filter(ranked.place < limit).select("text_key", giver_id="query_id", negative_id="doc_id")
    refused = {"positive_of_the_query": before - between, "text_of_a_positive": between - after}
    return NegativePool(engine.keep(table), refused)


def with_negative(engine: Engine, pairs: ir.Table, pool: ir.Table, positives: ir.Table, *, seed: int) -> ir.Table:
    """Choose one hard negative for each pair from its giver's pool, null where the guards leave none.

    pairs: (query_id, giver_id, positive_id, strength, clicks). Adds negative_id, and of the candidates that the guards
    of the receiving query refused, the counts refused_positive and refused_text.
    """
    known = positives.select("query_id", negative_id="doc_id", is_positive=ibis.literal(True)).distinct()
    texts = positives.select("query_id", "text_key", is_text=ibis.literal(True)).distinct()
    columns = ["query_id", "giver_id", "positive_id", "strength", "clicks"]
    offered = pairs.left_join(pool, "giver_id").select(*columns, "negative_id", "text_key")
    checked = offered.left_join(known, ["query_id", "negative_id"]).select(offered, "is_positive")
    checked = checked.left_join(texts, ["query_id", "text_key"]).select(checked, "is_text")
    is_positive, is_text = checked.is_positive.fill_null(False), checked.is_text.fill_null(False)
    flagged = checked.select(
        *columns,
        "negative_id",
        number=digest(seed, checked.query_id, checked.positive_id, checked.negative_id),
        refused_positive=is_positive,
        refused_text=is_text & ~is_positive,
        free=checked.negative_id.notnull() & ~is_positive & ~is_text,
    )
    chosen = flagged.group_by(columns).aggregate(
        negative_id=flagged.negative_id.argmin(flagged.number, where=flagged.free),
        refused_positive=flagged.count(where=flagged.refused_positive),
        refused_text=flagged.count(where=flagged.refused_text),
    )
    return engine.keep(chosen)
