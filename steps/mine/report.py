"""The mining report: how many rows of which source, what was left out and why, and examples that a person can judge."""

from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.engine import Engine
from steps.mine.hard_negatives import digest
from steps.mine.triplets import ONE_HOP

_SAMPLES = 20
_TERMS = 20
_SNIPPET = 240  # characters of a document shown in a sample


def associating_terms(engine: Engine, associations: ir.Table, top: ir.Table) -> list[dict[str, Any]]:
    """The terms that decide most associations: [{term, associations}]."""
    deciding = associations.join(top, "query_id").group_by("term").aggregate(associations=lambda t: t.count())
    return list(engine.rows(deciding.order_by(ibis.desc("associations"), "term").limit(_TERMS)).to_pylist())


def samples(
    engine: Engine,
    triplets: ir.Table,
    judged: ir.Table,
    importances: ir.Table,
    top: ir.Table,
    queries: ir.Table,
    corpus: ir.Table,
    *,
    seed: int,
) -> list[dict[str, Any]]:
    """A seeded sample of triplets, evenly over the sources, with texts and the reason why each exists."""
    number = digest(seed, triplets.query_id, triplets.positive_id, triplets.negative_id, triplets.source)
    numbered = triplets.mutate(number=number)
    place = ibis.row_number().over(ibis.window(group_by="source", order_by="number"))
    chosen = numbered.mutate(place=place).order_by("place", "source").limit(_SAMPLES)
    rows: list[dict[str, Any]] = engine.rows(chosen).to_pylist()
    query_ids = sorted({row[key] for row in rows for key in ("query_id", "via_query_id")} - {""})
    doc_ids = sorted({row[key] for row in rows for key in ("positive_id", "negative_id")})
    if not rows:
        return []
    query_texts = dict(_pairs(engine, queries.filter(queries.query_id.isin(query_ids)), "query_id", "text"))
    documents = {
        row["doc_id"]: {"id": row["doc_id"], "title": row["title"], "content": row["content"][:_SNIPPET]}
        for row in engine.rows(corpus.filter(corpus.doc_id.isin(doc_ids))).to_pylist()
    }
    seen = {
        (row["query_id"], row["doc_id"]): row
        for row in engine.rows(judged.filter(judged.query_id.isin(query_ids))).to_pylist()
    }
    top_of: dict[str, list[str]] = {}
    for query_id, term in sorted(_pairs(engine, top.filter(top.query_id.isin(query_ids)), "query_id", "term")):
        top_of.setdefault(query_id, []).append(term)
    scores = {
        (row["query_id"], row["term"]): row["importance"]
        for row in engine.rows(importances.filter(importances.query_id.isin(query_ids))).to_pylist()
    }
    result = []
    for row in rows:
        giver = row["query_id"] if row["source"] == ONE_HOP else row["via_query_id"]
        positive, negative = (seen[giver, row[key]] for key in ("positive_id", "negative_id"))
        who = "this query" if row["source"] == ONE_HOP else "the query it came through"
        why = f"{who} clicked the positive {positive['clicks']} times in {positive['shown']} impressions"
        why += f" and the negative never in {negative['shown']}"
        if row["source"] != ONE_HOP:
            shares = ", ".join(f"{term} {scores[giver, term]:.2f}" for term in top_of[row["query_id"]])
            why += f"; importance there of this query's top terms: {shares}"
        result.append(
            {
                "source": row["source"],
                "query": {"id": row["query_id"], "text": query_texts[row["query_id"]]},
                "via_query": None if row["source"] == ONE_HOP else {"id": giver, "text": query_texts[giver]},
                "positive": documents[row["positive_id"]],
                "negative": documents[row["negative_id"]],
                "weight": round(row["weight"], 6),
                "why": why,
            }
        )
    return result


def _pairs(engine: Engine, table: ir.Table, key: str, value: str) -> list[tuple[str, str]]:
    return [(row[key], row[value]) for row in engine.rows(table.select(key, value)).to_pylist()]
