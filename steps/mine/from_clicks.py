"""The cell `click`: associations and triplets from the click log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.association import MIN_TERMS, click_associations
from steps.mine.audit import audit, used_queries
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.clicks import Judgements, judgements
from steps.mine.engine import Engine
from steps.mine.outputs import association_rows, triplet_rows
from steps.mine.params import MineParams
from steps.mine.planner import importances
from steps.mine.positives import judged_positives, named_documents, triplet_positives
from steps.mine.report import associating_terms, rows_by_source, samples, why_clicked
from steps.mine.triplets import MAX_NEGATIVES, Signal, mine_triplets, tell_unused

CLICK_TOP_TERMS = 2  # how many of q1's terms must be important in q2, as in the paper
CLICK_SOURCES = ("click_one_hop", "click_multi_hop")
_EMPTY_LOG = "the log holds no impressions: nothing to mine, both tables are empty"


def mine_clicks(
    engine: Engine, tables: Mapping[str, ir.Table], folder: Path, params: MineParams, source: str
) -> dict[str, Any]:
    """Write associations and triplets below `folder` and return the report; `source` names the log in errors."""
    queries = keyed_queries(engine, tables["queries"])
    named = [tables["impressions"].select("doc_id"), *named_documents(tables["qrels"], tables["given_triplets"])]
    documents = keyed_documents(engine, tables["corpus"].semi_join(ibis.union(*named, distinct=True), "doc_id"))
    log = judgements(engine, tables["impressions"], queries, documents, params.debias, seed=params.seed)
    signal = click_signal(engine, log.table, documents)

    train = queries.filter(queries.split == "train")
    planned = importances(engine, of_datasets_with(train, log.table), params, tables["term_scores"])
    associations = click_associations(
        engine,
        planned,
        signal.positives.select("query").distinct(),
        threshold=params.click_threshold,
        top_terms=CLICK_TOP_TERMS,
        min_terms=MIN_TERMS,
        cap=params.max_associations,
    )
    known_positives = judged_positives(engine, tables["qrels"], train, documents).union(
        triplet_positives(engine, tables["given_triplets"], train, documents)
    )
    mined = mine_triplets(
        engine,
        signal,
        associations.strongest,
        known_positives,
        documents,
        max_positives=params.max_positives,
        max_negatives=MAX_NEGATIVES,
        negatives_per_positive=params.negatives_per_positive,
        multi_hop_weight=params.multi_hop_weight,
        seed=params.seed,
    )
    tell_unused(mined, "click", "max_positives")
    leakage = audit(engine, used_queries(associations.strongest, mined.table), queries, source)
    engine.write(folder, "associations", association_rows(associations.strongest, queries, "click"))
    engine.write(folder, "triplets", triplet_rows(mined.table, queries, documents))

    rows = rows_by_source(engine, mined.table, CLICK_SOURCES)
    return {
        "note": _note(log, rows),
        "rows": rows,
        "queries": {
            "train": engine.number(train.count()),
            "in_triplets": engine.number(mined.table.query.nunique()),
            "with_clicks": engine.number(signal.positives.query.nunique()),
        },
        "impressions": {"read": log.impressions, "dropped": log.dropped},
        "propensities": _propensities(log),
        "associations": association_facts(engine, associations.strongest, associations.total, planned),
        "dropped_positives": mined.dropped,
        "refused_negatives": mined.refused_negatives,
        "leakage": {"clicks": leakage},
        "associating_terms": associating_terms(engine, associations.strongest, associations.top, planned),
        "associating_terms_relevance": [],
        "samples": samples(
            engine,
            mined.table,
            log.table,
            why_clicked,
            (planned, associations.top),
            queries,
            documents,
            tables["corpus"],
            seed=params.seed,
        ),
    }


def click_signal(engine: Engine, judged: ir.Table, documents: ir.Table) -> Signal:
    """Clicked documents as positives, shown and not clicked ones as candidates for hard negatives."""
    texts = documents.select("doc", "text_key")
    clicked = judged.filter(judged.clicks > 0)
    weighed = clicked.select("query", "doc", "weight", click_weight=clicked.weight // clicked.clicks)
    positives = weighed.join(texts, "doc")
    ignored = judged.filter(judged.clicks == 0).select("query", "doc").join(texts, "doc")
    return Signal("click", engine.keep(positives), engine.keep(ignored))


def of_datasets_with(train: ir.Table, judged: ir.Table) -> ir.Table:
    """Training queries of the data sets that `judged` (query, ...) has queries of; no other can get an association."""
    datasets = train.semi_join(judged, "query").select("dataset").distinct()
    return train.semi_join(datasets, "dataset")


def association_facts(engine: Engine, strongest: ir.Table, total: int, planned: ir.Table) -> dict[str, Any]:
    """How many associations there are, and how many the cap cut."""
    number = engine.number(strongest.count())
    return {
        "kept": number,
        "per_query": round(number / max(engine.number(planned["query"].nunique()), 1), 4),
        "queries_with_any": engine.number(strongest["query"].nunique()),
        "found": total,
        "cut_share": round(1 - number / total, 6) if total else 0.0,
    }


def _propensities(log: Judgements) -> dict[str, Any] | None:
    if log.propensities is None:
        return None
    return {
        "examination_by_rank": [round(value, 4) for value in log.propensities.values.tolist()],
        "pairs_used": log.propensities.pairs_used,
        "iterations": log.propensities.iterations,
    }


def _note(log: Judgements, rows: dict[str, int]) -> str:
    """What a reader must know first, or nothing."""
    if log.impressions == 0:
        return _EMPTY_LOG
    if not any(rows.values()):
        return "no triplet came of the log: see impressions.dropped and dropped_positives"
    return ""
