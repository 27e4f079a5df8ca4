"""Rows with keys become the tables that other stages read."""

import ibis
import ibis.expr.types as ir


def association_rows(associations: ir.Table, queries: ir.Table, kind: str) -> ir.Table:
    """Associations as rows of the table `associations`."""
    ids = queries.select("query", "query_id")
    named = associations.join(ids, "query").select("other_query", "query_id")
    other_ids = ids.select(other_query="query", other_query_id="query_id")
    return named.join(other_ids, "other_query").select("query_id", "other_query_id").mutate(kind=ibis.literal(kind))


def triplet_rows(triplets: ir.Table, queries: ir.Table, documents: ir.Table) -> ir.Table:
    """Triplets as rows of the table `triplets`."""
    ids = queries.select("query", "query_id")
    docs = documents.select("doc", "doc_id")
    table = triplets.join(ids, "query").drop("query")
    table = table.left_join(ids.select(via="query", via_query_id="query_id"), "via").select(table, "via_query_id")
    table = table.join(docs.select(positive="doc", positive_id="doc_id"), "positive").drop("positive")
    table = table.join(docs.select(negative="doc", negative_id="doc_id"), "negative").drop("negative")
    return table.select(
        "query_id",
        "positive_id",
        "negative_id",
        "source",
        via_query_id=table.via_query_id.fill_null(""),
        weight=table.weight.cast("float32"),
    )
