"""What is known to be relevant to a training query, by whatever signal: no such document is its hard negative."""

import ibis.expr.types as ir

from steps.mine.engine import Engine
from steps.mine.triplets import all_positives


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
