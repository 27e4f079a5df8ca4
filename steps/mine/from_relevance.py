"""The cell `relevance`: triplets from a ranker's scores, and the earlier ones checked against them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.association import MIN_TERMS, relevance_associations
from steps.mine.audit import audit, used_queries
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.earlier_triplets import Earlier
from steps.mine.engine import Engine
from steps.mine.from_clicks import CLICK_SOURCES, association_facts, of_datasets_with
from steps.mine.outputs import association_rows, triplet_rows
from steps.mine.params import RELEVANCE_DEPTH, MineParams
from steps.mine.planner import importances
from steps.mine.positives import click_positives, irrelevant, judged_positives, named_documents, triplet_positives
from steps.mine.relevance import ranked_documents, relevance_signal
from steps.mine.report import SAMPLES, associating_terms, rows_by_source, samples, why_relevant
from steps.mine.triplets import MAX_NEGATIVES, mine_triplets, tell_unused

RELEVANCE_TOP_TERMS = 4  # how many terms of two queries must be important both ways, as in the paper
RELEVANCE_SOURCES = ("relevance_one_hop", "relevance_multi_hop")


def mine_relevance(
    engine: Engine,
    tables: Mapping[str, ir.Table],
    ranker: Sequence[ir.Table],
    earlier: Earlier,
    folder: Path,
    params: MineParams,
    source: str,
) -> dict[str, Any]:
    """Write the triplets of all sources below `folder` and return their report.

    ranker: scores of the stage `rank`, if it ran, which count on data sets without relevance scores of their own. The
    triplets of `earlier` are kept as they are, but for those whose hard negative scores best for the query, and click
    triplets whose negative is among its best `relevance_skip` or a positive by association; they are dropped and
    counted. What people judged irrelevant, or gave as a negative, is no positive however it scores.
    """
    queries = keyed_queries(engine, tables["queries"])
    relevance = _relevance(engine, tables["relevance"], ranker, queries)
    if engine.number(relevance.count()) == 0:
        return earlier.passed_on(folder, RELEVANCE_SOURCES)

    named = [table.select("doc_id") for table in (relevance, tables["impressions"])]
    named += named_documents(tables["qrels"], earlier.triplets)
    documents = keyed_documents(engine, tables["corpus"].semi_join(ibis.union(*named, distinct=True), "doc_id"))
    ranked = ranked_documents(engine, relevance, queries, documents)
    signal = relevance_signal(engine, ranked.table, documents, skip=params.relevance_skip, depth=RELEVANCE_DEPTH)
    train = queries.filter(queries.split == "train")
    planned = importances(engine, of_datasets_with(train, ranked.table), params, tables["term_scores"])
    associations = relevance_associations(
        engine,
        planned,
        signal.positives.select("query").distinct(),
        threshold=params.relevance_threshold,
        top_terms=RELEVANCE_TOP_TERMS,
        min_terms=MIN_TERMS,
        cap=params.max_associations,
    )
    wrong = irrelevant(engine, tables["qrels"], earlier.triplets, train, documents)
    best = engine.keep(signal.positives.anti_join(wrong, ["query", "text_key"]))
    signal = signal._replace(positives=best)
    known_positives = ibis.union(
        click_positives(engine, tables["impressions"], earlier.associations, train, documents),
        judged_positives(engine, tables["qrels"], train, documents),
        triplet_positives(engine, earlier.triplets.filter(earlier.triplets.source == "given"), train, documents),
    )
    high = ranked.table.filter(ranked.table["rank"] <= params.relevance_skip).join(documents, "doc")
    maybe_relevant = engine.keep(high.select("query", "doc", "text_key"))
    mined = mine_triplets(
        engine,
        signal,
        associations.strongest,
        known_positives.union(maybe_relevant),
        documents,
        max_positives=params.max_positives,
        max_negatives=MAX_NEGATIVES,
        negatives_per_positive=params.negatives_per_positive,
        multi_hop_weight=params.multi_hop_weight,
        seed=params.seed,
    )
    tell_unused(mined, "relevance", "max_positives")
    leakage = audit(engine, used_queries(associations.strongest, mined.table), queries, source)
    by_clicks = earlier.triplets.source.isin(CLICK_SOURCES)
    remaining = engine.keep(
        ibis.union(
            _without_relevant_negatives(
                earlier.triplets.filter(by_clicks), mined.positives.union(maybe_relevant), queries, documents
            ),
            _without_relevant_negatives(earlier.triplets.filter(~by_clicks), best, queries, documents),
        )
    )
    engine.write(
        folder,
        "associations",
        earlier.associations.union(association_rows(associations.strongest, queries, "relevance")),
    )
    triplets = remaining.union(triplet_rows(mined.table, queries, documents))
    engine.write(folder, "triplets", triplets)

    new_samples = samples(
        engine,
        mined.table,
        ranked.table,
        why_relevant,
        (planned, associations.top),
        queries,
        documents,
        tables["corpus"],
        seed=params.seed,
    )
    rows = rows_by_source(engine, remaining, earlier.rows) | rows_by_source(engine, mined.table, RELEVANCE_SOURCES)
    removed = sum(earlier.rows.values()) - engine.number(remaining.count())
    sampled = earlier.sampled(remaining, engine)
    half = max(SAMPLES - len(sampled), SAMPLES // 2)
    note = "" if any(rows.values()) else "no triplet came of anything: see what was dropped below"
    report = earlier.report
    return report | {
        "note": note,
        "rows": rows,
        "queries": report["queries"]
        | {
            "in_triplets": engine.number(triplets.query_id.nunique()),
            "with_relevance": engine.number(signal.positives.query.nunique()),
            "in_relevance_triplets": engine.number(mined.table.query.nunique()),
        },
        "scores": {"read": ranked.scores, "dropped": ranked.dropped},
        "associations": report["associations"]
        | {"relevance": association_facts(engine, associations.strongest, associations.total, planned)},
        "dropped_positives": report["dropped_positives"]
        | mined.dropped
        | {"earlier_triplets": {"negative_is_relevant": removed}},
        "refused_negatives": report["refused_negatives"] | mined.refused_negatives,
        "leakage": report["leakage"] | {"relevance": leakage},
        "associating_terms_relevance": associating_terms(engine, associations.strongest, associations.top, planned),
        "samples": (new_samples[:half] + sampled)[:SAMPLES],
    }


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
