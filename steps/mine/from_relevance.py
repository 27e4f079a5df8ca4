"""The cell `relevance`: triplets from a ranker's scores, and the earlier ones checked against them."""

from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.association import relevance_associations
from steps.mine.catalogue import keyed_rows
from steps.mine.cell import Cell, Earlier, audit, used_queries
from steps.mine.engine import Engine
from steps.mine.from_clicks import CLICK_SOURCES, association_facts
from steps.mine.params import RELEVANCE_DEPTH, SKIPPED
from steps.mine.report import associating_terms, merged_samples, rows_by_source, samples, why_relevant
from steps.mine.triplets import (
    FIXED_POINT,
    Signal,
    click_positives,
    irrelevant,
    judged_positives,
    mine_triplets,
    named_documents,
    tell_unused,
    triplet_positives,
)

RELEVANCE_TOP_TERMS = 4  # how many terms of two queries must be important both ways, as in the paper
RELEVANCE_SOURCES = ("relevance_one_hop", "relevance_multi_hop")


def mine_relevance(cell: Cell, ranker: Sequence[ir.Table], earlier: Earlier) -> dict[str, Any]:
    """Write the triplets of all sources and return their report.

    ranker: scores of the stage `rank`, if it ran, which count on data sets without relevance scores of their own. The
    triplets of `earlier` are kept as they are, but for those whose hard negative scores best for the query, and click
    triplets whose negative is among its best SKIPPED or a positive by association; they are dropped and
    counted. What people judged irrelevant, or gave as a negative, is no positive however it scores.
    """
    engine, tables, train = cell.engine, cell.tables, cell.train
    relevance = _relevance(engine, tables["relevance"], ranker, cell.queries)
    if engine.number(relevance.count()) == 0:
        return earlier.passed_on(cell.folder, RELEVANCE_SOURCES)

    naming = named_documents(tables["qrels"], earlier.triplets)
    documents = cell.documents(relevance, tables["impressions"], *naming)
    ranked, dropped = ranked_documents(engine, relevance, cell.queries, documents)
    signal = relevance_signal(engine, ranked, documents)
    threshold = cell.params.relevance_threshold
    planned, associations = cell.associate(relevance_associations, signal, ranked, threshold, RELEVANCE_TOP_TERMS)
    wrong = irrelevant(engine, tables["qrels"], earlier.triplets, train, documents)
    best = engine.keep(signal.positives.anti_join(wrong, ["query", "text_key"]))
    signal = signal._replace(positives=best)
    known_positives = ibis.union(
        click_positives(engine, tables["impressions"], earlier.associations, train, documents),
        judged_positives(engine, tables["qrels"], train, documents),
        triplet_positives(engine, earlier.triplets.filter(earlier.triplets.source == "given"), train, documents),
    )
    high = ranked.filter(ranked["rank"] <= SKIPPED).join(documents, "doc")
    maybe_relevant = engine.keep(high.select("query", "doc", "text_key"))
    guarded = known_positives.union(maybe_relevant)
    mined = mine_triplets(engine, signal, associations.strongest, guarded, documents, cell.params)
    tell_unused(mined, "relevance")
    leakage = audit(engine, used_queries(associations.strongest, mined.table), cell.queries, cell.source)
    by_clicks = earlier.triplets.source.isin(CLICK_SOURCES)
    clicked, others = earlier.triplets.filter(by_clicks), earlier.triplets.filter(~by_clicks)
    refuted = mined.positives.union(maybe_relevant)
    remaining = engine.keep(
        _without_relevant_negatives(clicked, refuted, cell.queries, documents).union(
            _without_relevant_negatives(others, best, cell.queries, documents)
        )
    )
    triplets = remaining.union(cell.triplet_rows(mined.table, documents))
    own_associations = cell.association_rows(associations.strongest, "relevance")
    cell.write(earlier.associations.union(own_associations), triplets)

    new_samples = samples(cell, mined.table, ranked, why_relevant, documents, (planned, associations.top))
    rows = rows_by_source(engine, remaining, earlier.rows) | rows_by_source(engine, mined.table, RELEVANCE_SOURCES)
    removed = sum(earlier.rows.values()) - engine.number(remaining.count())
    sections = {
        "note": "" if any(rows.values()) else "no triplet came of anything: see what was dropped below",
        "rows": rows,
        "queries": {
            "in_triplets": engine.number(triplets.query_id.nunique()),
            "with_relevance": engine.number(signal.positives.query.nunique()),
            "in_relevance_triplets": engine.number(mined.table.query.nunique()),
        },
        "scores": {"read": engine.number(relevance.count()), "dropped": dropped},
        "associations": {"relevance": association_facts(engine, associations, planned)},
        "dropped_positives": mined.dropped | {"earlier_triplets": {"negative_is_relevant": removed}},
        "refused_negatives": mined.refused_negatives,
        "leakage": {"relevance": leakage},
        "associating_terms_relevance": associating_terms(engine, associations.strongest, associations.top, planned),
        "samples": merged_samples(new_samples, earlier.sampled(remaining, engine)),
    }
    return earlier.extended(sections)


def _relevance(engine: Engine, user_scores: ir.Table, ranker: Sequence[ir.Table], queries: ir.Table) -> ir.Table:
    """The user's scores, and a ranker's on data sets of which the user has none."""
    whose = queries.select("query_id", "dataset")
    train = queries.filter(queries.split == "train").select("query_id", "dataset")
    covered = user_scores.join(train, "query_id").select("dataset").distinct()
    tables = [user_scores]
    for scores in ranker:
        uncovered = scores.join(whose, "query_id").anti_join(covered, "dataset")
        tables.append(uncovered.select("query_id", "doc_id", "score"))
    return engine.keep(ibis.union(*tables)) if ranker else user_scores


def _without_relevant_negatives(
    triplets: ir.Table, positives: ir.Table, queries: ir.Table, documents: ir.Table
) -> ir.Table:
    """Triplets less those whose negative is, or has the text of, one of `positives` of the query."""
    ids = queries.select("query", "query_id")
    texts = documents.select("text_key", negative_id="doc_id")
    relevant = positives.join(ids, "query").select("query_id", "text_key").join(texts, "text_key")
    return triplets.anti_join(relevant.select("query_id", "negative_id"), ["query_id", "negative_id"])


def ranked_documents(
    engine: Engine, relevance: ir.Table, queries: ir.Table, documents: ir.Table
) -> tuple[ir.Table, dict[str, int]]:
    """A ranker's scores of the training queries (query, doc, score, rank), and rows left out, by reason.

    rank is 1 for the best of a query; equal scores share the best rank among them.
    """
    rows, dropped = keyed_rows(engine, relevance, queries, documents, ["score"])
    rank = ibis.rank().over(ibis.window(group_by="query", order_by=ibis.desc("score")))
    used = rows.filter(rows.reason == "")
    return engine.keep(used.select("query", "doc", "score", rank=rank.cast("int64") + 1)), dropped


def relevance_signal(engine: Engine, ranked: ir.Table, documents: ir.Table) -> Signal:
    """The best document of each query, of several the first by key; as candidates ranks in (SKIPPED, RELEVANCE_DEPTH].

    What lies between may be relevant too, so it is neither; so may what scores as high as any of it, or as the best.
    """
    texts = documents.select("doc", "text_key")
    first = ranked.filter(ranked["rank"] == 1).group_by("query").aggregate(doc=lambda t: t.doc.min())
    best = first.join(texts, "doc")
    unit = ibis.literal(FIXED_POINT, "int64")
    positives = engine.keep(best.select("query", "doc", "text_key", weight=unit, click_weight=unit))
    low = ranked.filter((ranked["rank"] > SKIPPED) & (ranked["rank"] <= RELEVANCE_DEPTH)).join(texts, "doc")
    return Signal("relevance", positives, engine.keep(low.select("query", "doc", "text_key")))
