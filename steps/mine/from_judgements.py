"""The cell `judged`: triplets from the judgements of training queries, and those that came with the data."""

from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.cell import Cell, Earlier, audit, used_queries
from steps.mine.engine import Engine
from steps.mine.params import JUDGED_DEPTH, SKIPPED
from steps.mine.report import merged_samples, rows_by_source, samples, why_judged
from steps.mine.triplets import (
    FIXED_POINT,
    Signal,
    click_positives,
    judged_positives,
    mine_triplets,
    named_documents,
    triplet_positives,
)

JUDGED_SOURCES = ("judged", "given")


def mine_judged(cell: Cell, candidates: Sequence[ir.Table], earlier: Earlier) -> dict[str, Any]:
    """Write what `earlier` has and the triplets of judgements, and return the report of all.

    candidates: what each searcher found. Positives of a query are its documents of grade 1 or more, the best graded
    first. Candidates for hard negatives are those judged irrelevant, and those that a searcher places in
    (SKIPPED, JUDGED_DEPTH]: what it ranks above may be relevant, though nobody said so. Given triplets stay as
    they are, but for those whose negative is known to be relevant.
    """
    engine, tables, train = cell.engine, cell.tables, cell.train
    qrels, dataset_triplets = (tables[name].semi_join(train, "query_id") for name in ("qrels", "given_triplets"))
    if engine.number(qrels.count()) + engine.number(dataset_triplets.count()) == 0:
        return earlier.passed_on(cell.folder, JUDGED_SOURCES)

    documents = cell.documents(tables["impressions"], *candidates, *named_documents(qrels, dataset_triplets))
    graded = graded_documents(engine, qrels, candidates, train, documents)
    signal = judged_signal(engine, graded, documents)
    clicked = click_positives(engine, tables["impressions"], earlier.associations, train, documents)
    published = triplet_positives(engine, dataset_triplets, train, documents)
    relevant = ibis.union(clicked, published, judged_positives(engine, qrels, train, documents))
    alone = signal.positives.select("query", other_query="query", strength=ibis.literal(0, "int64")).limit(0)
    unlimited = cell.params.model_copy(update={"max_positives": 0})
    mined = mine_triplets(engine, signal, alone, relevant, documents, unlimited)
    usable = given_triplets(engine, dataset_triplets, relevant, train, documents)
    used = used_queries(alone, mined.table).union(usable.join(train, "query_id").select("query")).distinct()
    leakage = audit(engine, used, cell.queries, cell.source)
    judged_rows = cell.triplet_rows(mined.table, documents).mutate(source=ibis.literal("judged"))
    added = engine.keep(judged_rows.union(usable))
    triplets = earlier.triplets.union(added)
    cell.write(earlier.associations, triplets)

    new_samples = samples(cell, mined.table, graded, why_judged, documents)
    rows = rows_by_source(engine, added, JUDGED_SOURCES)
    unknown = engine.number(qrels.anti_join(documents, "doc_id").count())
    dropped, refused = {"judged": mined.dropped["judged_one_hop"]}, mined.refused_negatives["judged_one_hop"]
    if lost := engine.number(dataset_triplets.count()) - rows["given"]:
        dropped["given"] = {"negative_is_relevant_or_document_unknown": lost}
    sections = {
        "rows": rows,
        "queries": {
            "in_triplets": engine.number(triplets.query_id.nunique()),
            "with_judgements": engine.number(signal.positives.query.nunique()),
            "in_judged_triplets": engine.number(mined.table.query.nunique()),
        },
        "judgements": {
            "read": engine.number(tables["qrels"].count()),
            "dropped": {"unknown_document": unknown} if unknown else {},
        },
        "dropped_positives": dropped,
        "refused_negatives": {"judged": refused},
        "leakage": {"judged": leakage},
        "samples": merged_samples([row | {"source": "judged"} for row in new_samples], earlier.report["samples"]),
    }
    return earlier.extended(sections | ({"note": ""} if any(rows.values()) else {}))


def graded_documents(
    engine: Engine, qrels: ir.Table, candidates: Sequence[ir.Table], train: ir.Table, documents: ir.Table
) -> ir.Table:
    """What is judged of training queries, and what was found for them: (query, doc, grade, rank).

    grade is null for what nobody judged, rank, the best of all searchers, for what none found.
    """
    columns, null = ["query_id", "doc_id", "grade", "rank"], ibis.null("int32")
    joined = qrels.mutate(rank=null).select(columns)
    for table in candidates:
        joined = joined.union(table.mutate(grade=null).select(columns))
    keyed = joined.join(train.select("query", "query_id"), "query_id").join(documents.select("doc", "doc_id"), "doc_id")
    return engine.keep(keyed.group_by("query", "doc").aggregate(grade=keyed.grade.max(), rank=keyed["rank"].min()))


def judged_signal(engine: Engine, graded: ir.Table, documents: ir.Table) -> Signal:
    """Relevant documents as positives; as candidates irrelevant ones, and unjudged ones of the ranks that count."""
    texts = documents.select("doc", "text_key")
    good = graded.filter(graded.grade > 0).join(texts, "doc")
    unit = ibis.literal(FIXED_POINT, "int64")
    weight = good.grade.cast("int64") * unit
    positives = engine.keep(good.select("query", "doc", "text_key", weight=weight, click_weight=unit))
    is_unjudged = graded.grade.isnull() & (graded["rank"] > SKIPPED) & (graded["rank"] <= JUDGED_DEPTH)
    bad = graded.filter((graded.grade <= 0) | is_unjudged).join(texts, "doc")
    return Signal("judged", positives, engine.keep(bad.select("query", "doc", "text_key")))


def given_triplets(
    engine: Engine, dataset_triplets: ir.Table, relevant: ir.Table, train: ir.Table, documents: ir.Table
) -> ir.Table:
    """Given triplets as rows of `triplets`, less those whose negative has the text of a relevant document."""
    texts = documents.select("text_key", "doc_id")
    relevant_texts = relevant.join(train.select("query", "query_id"), "query").select("query_id", "text_key")
    usable = dataset_triplets.semi_join(texts.select(positive_id="doc_id"), "positive_id")
    usable = usable.join(texts.select("text_key", negative_id="doc_id"), "negative_id")
    usable = usable.anti_join(relevant_texts, ["query_id", "text_key"])
    return engine.keep(
        usable.select(
            "query_id",
            "positive_id",
            "negative_id",
            source=ibis.literal("given"),
            via_query_id=ibis.literal(""),
            weight=ibis.literal(1.0).cast("float32"),
        )
    )
