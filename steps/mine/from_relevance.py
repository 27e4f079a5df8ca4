"""The cell `relevance`: triplets from a ranker's scores, and those from clicks checked against them."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.core.files import read_json
from steps.core.tables import table_path
from steps.mine.association import relevance_associations
from steps.mine.audit import audit, used_queries
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.engine import Engine
from steps.mine.from_clicks import association_facts, of_datasets_with, rows_by_source
from steps.mine.outputs import association_rows, triplet_rows
from steps.mine.params import MineParams
from steps.mine.planner import importances
from steps.mine.relevance import ranked_documents, relevance_signal
from steps.mine.report import SAMPLES, associating_terms, samples, why_relevant
from steps.mine.triplets import all_positives, mine_triplets


def mine_relevance(
    engine: Engine, tables: Mapping[str, ir.Table], clicks: Path, folder: Path, params: MineParams, source: str
) -> dict[str, Any]:
    """Write the triplets of all four sources below `folder` and return their report.

    clicks: output of the cell `click`. Its triplets are kept as they are, but for those whose hard negative is a
    positive of the query by relevance, which are dropped and counted.
    """
    from_clicks: dict[str, Any] = read_json(clicks / "report.json")
    mined_before = {name: table_path(clicks, name) for name in ("associations", "triplets")}
    if engine.number(tables["relevance"].count()) == 0:
        for path in mined_before.values():
            copyfile(path, folder / path.name)
        return from_clicks | {"rows": from_clicks["rows"] | {"relevance_one_hop": 0, "relevance_multi_hop": 0}}

    earlier = {name: engine.read(path) for name, path in mined_before.items()}
    queries = keyed_queries(engine, tables["queries"])
    named = ibis.union(tables["relevance"].select("doc_id"), tables["impressions"].select("doc_id"), distinct=True)
    documents = keyed_documents(engine, tables["corpus"].semi_join(named, "doc_id"))
    ranked = ranked_documents(engine, tables["relevance"], queries, documents)
    signal = relevance_signal(engine, ranked.table, documents, skip=params.relevance_skip, depth=params.relevance_depth)
    train = queries.filter(queries.split == "train")
    planned = importances(engine, of_datasets_with(train, ranked.table), params, tables["term_scores"])
    found = relevance_associations(
        engine,
        planned,
        signal.positives.select("query").distinct(),
        threshold=params.relevance_threshold,
        top_terms=params.relevance_top_terms,
        min_terms=params.min_terms,
        cap=params.max_associations,
    )
    clicked = _click_positives(engine, tables["impressions"], earlier["associations"], train, documents)
    high = ranked.table.filter(ranked.table["rank"] <= params.relevance_skip).join(documents, "doc")
    maybe_relevant = engine.keep(high.select("query", "doc", "text_key"))
    mined = mine_triplets(
        engine,
        signal,
        found.kept,
        clicked.union(maybe_relevant),
        documents,
        max_positives=params.max_positives,
        max_negatives=params.max_negatives,
        multi_hop_weight=params.multi_hop_weight,
        seed=params.seed,
    )
    leakage = audit(engine, used_queries(found.kept, mined.table), queries, source)
    relevant = mined.positives.union(maybe_relevant)
    kept = _without_relevant_negatives(engine, earlier["triplets"], relevant, queries, documents)
    engine.write(
        folder,
        "associations",
        earlier["associations"].union(association_rows(found.kept, queries, "relevance")),
    )
    engine.write(folder, "triplets", kept.union(triplet_rows(mined.table, queries, documents)))

    own = samples(
        engine,
        mined.table,
        ranked.table,
        why_relevant,
        planned,
        found.top,
        queries,
        documents,
        tables["corpus"],
        seed=params.seed,
    )
    rows = rows_by_source(engine, kept, "click") | rows_by_source(engine, mined.table, "relevance")
    removed = sum(from_clicks["rows"].values()) - engine.number(kept.count())
    sampled = kept.filter(kept.query_id.isin([row["query"]["id"] for row in from_clicks["samples"]] or [""]))
    still = {tuple(row.values()) for row in engine.rows(sampled.select(_NAMES)).to_pylist()}
    clicked_samples = [row for row in from_clicks["samples"] if _names(row) in still]
    half = max(SAMPLES - len(clicked_samples), SAMPLES // 2)
    note = "" if any(rows.values()) else "no triplet came of clicks or scores: see what was dropped below"
    return {
        "note": note,
        "rows": rows,
        "queries": from_clicks["queries"]
        | {
            "in_triplets": engine.number(kept.query_id.nunique()),
            "with_relevance": engine.number(signal.positives.query.nunique()),
            "in_relevance_triplets": engine.number(mined.table.query.nunique()),
        },
        "impressions": from_clicks["impressions"],
        "scores": {"read": ranked.scores, "dropped": ranked.dropped},
        "propensities": from_clicks["propensities"],
        "associations": from_clicks["associations"]
        | {"relevance": association_facts(engine, found.kept, found.found, planned)},
        "dropped_positives": from_clicks["dropped_positives"]
        | mined.dropped
        | {"click_triplets": {"negative_is_relevant": removed}},
        "refused_negatives": from_clicks["refused_negatives"] | mined.refused_negatives,
        "leakage": from_clicks["leakage"] | {"relevance": leakage},
        "associating_terms": from_clicks["associating_terms"],
        "associating_terms_relevance": associating_terms(engine, found.kept, found.top, planned),
        "samples": (own[:half] + clicked_samples)[:SAMPLES],
    }


_NAMES = ["query_id", "positive_id", "negative_id", "source", "via_query_id"]


def _names(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of a sampled triplet, as in a row of the table."""
    via = sample["via_query"]["id"] if sample["via_query"] else ""
    ids = (sample[name]["id"] for name in ("query", "positive", "negative"))
    return (*ids, sample["source"], via)


def _click_positives(
    engine: Engine, impressions: ir.Table, associations: ir.Table, train: ir.Table, documents: ir.Table
) -> ir.Table:
    """(query, doc, text_key): the click positives of each training query by both hops."""
    clicked = impressions.filter(impressions.clicked).select("query_id", "doc_id").distinct()
    ids = train.select("query", "query_id")
    texts = documents.select("doc", "doc_id", "text_key")
    own = engine.keep(clicked.join(ids, "query_id").join(texts, "doc_id").select("query", "doc", "text_key"))
    others = ids.select(other_query="query", other_query_id="query_id")
    pairs = associations.join(ids, "query_id").join(others, "other_query_id").select("query", "other_query")
    return all_positives(engine, own, pairs)


def _without_relevant_negatives(
    engine: Engine, triplets: ir.Table, positives: ir.Table, queries: ir.Table, documents: ir.Table
) -> ir.Table:
    """Click triplets less those whose negative is, or has the text of, one of `positives` of the query."""
    ids = queries.select("query", "query_id")
    texts = documents.select("text_key", negative_id="doc_id")
    relevant = positives.join(ids, "query").select("query_id", "text_key").join(texts, "text_key")
    return engine.keep(triplets.anti_join(relevant.select("query_id", "negative_id"), ["query_id", "negative_id"]))
