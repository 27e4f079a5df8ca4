"""The cell `relevance`: triplets from a ranker's scores, and the earlier ones checked against them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ibis
import ibis.expr.types as ir

from steps.mine.association import relevance_associations
from steps.mine.audit import audit, used_queries
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.cell_tables import Earlier, association_rows, triplet_rows
from steps.mine.engine import Engine
from steps.mine.from_clicks import CLICK_SOURCES, association_facts, of_datasets_with
from steps.mine.params import RELEVANCE_DEPTH, SKIPPED, MineParams
from steps.mine.planner import importances
from steps.mine.positives import click_positives, irrelevant, judged_positives, named_documents, triplet_positives
from steps.mine.report import SAMPLES, associating_terms, rows_by_source, samples, why_relevant
from steps.mine.triplets import FIXED_POINT, Signal, mine_triplets, tell_unused

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
    triplets whose negative is among its best SKIPPED or a positive by association; they are dropped and
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
    signal = relevance_signal(engine, ranked.table, documents, skip=SKIPPED, depth=RELEVANCE_DEPTH)
    train = queries.filter(queries.split == "train")
    planned = importances(engine, of_datasets_with(train, ranked.table), params, tables["term_scores"])
    associations = relevance_associations(
        engine,
        planned,
        signal.positives.select("query").distinct(),
        threshold=params.relevance_threshold,
        top_terms=RELEVANCE_TOP_TERMS,
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
    high = ranked.table.filter(ranked.table["rank"] <= SKIPPED).join(documents, "doc")
    maybe_relevant = engine.keep(high.select("query", "doc", "text_key"))
    mined = mine_triplets(
        engine,
        signal,
        associations.strongest,
        known_positives.union(maybe_relevant),
        documents,
        max_positives=params.max_positives,
        negatives_per_positive=params.negatives_per_positive,
        multi_hop_weight=params.multi_hop_weight,
    )
    tell_unused(mined, "relevance")
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


class Ranked(NamedTuple):
    """A ranker's scores of the training queries."""

    table: ir.Table
    """(query, doc, score, rank): rank is 1 for the best of a query; equal scores share the best rank among them."""
    scores: int
    """Rows of the relevance table."""
    dropped: dict[str, int]
    """Rows left out, by reason."""


def ranked_documents(engine: Engine, relevance: ir.Table, queries: ir.Table, documents: ir.Table) -> Ranked:
    """Rank each training query's documents by score; rows of other queries are counted."""
    joined = relevance.left_join(queries.select("query", "query_id", "split"), "query_id")
    joined = joined.select(relevance, "query", "split")
    joined = joined.left_join(documents.select("doc", "doc_id"), "doc_id").select(joined, "doc")
    split = joined.split.fill_null("unlabelled")  # the table of queries has only those of a split
    reason = ibis.cases((split != "train", split + "_query"), (joined.doc.isnull(), "unknown_document"), else_="")
    rows = engine.keep(joined.select("query", "doc", "score", reason=reason))
    counts = rows.group_by("reason").aggregate(rows=lambda t: t.count())
    by_reason = {row["reason"]: row["rows"] for row in engine.rows(counts).to_pylist()}
    used = rows.filter(rows.reason == "")
    rank = ibis.rank().over(ibis.window(group_by="query", order_by=ibis.desc("score")))
    table = engine.keep(used.select("query", "doc", "score", rank=rank.cast("int64") + 1))
    dropped = {name: by_reason[name] for name in sorted(by_reason) if name}
    return Ranked(table, sum(by_reason.values()), dropped)


def relevance_signal(engine: Engine, ranked: ir.Table, documents: ir.Table, *, skip: int, depth: int) -> Signal:
    """The best document of each query, and as candidates those ranked in (`skip`, `depth`].

    What lies between may be relevant too, so it is neither; so may what scores as high as any of it, or as the best. Of
    several best ones the first by key is taken.
    """
    texts = documents.select("doc", "text_key")
    first = ranked.filter(ranked["rank"] == 1).group_by("query").aggregate(doc=lambda t: t.doc.min())
    best = first.join(texts, "doc")
    unit = ibis.literal(FIXED_POINT, "int64")
    positives = engine.keep(best.select("query", "doc", "text_key", weight=unit, click_weight=unit))
    low = ranked.filter((ranked["rank"] > skip) & (ranked["rank"] <= depth)).join(texts, "doc")
    return Signal("relevance", positives, engine.keep(low.select("query", "doc", "text_key")))
