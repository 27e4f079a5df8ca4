"""The stage: tables of ingest in, associations, triplets and report out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.core.files import staged_folder, write_json
from steps.core.params.mine import MineParams
from steps.core.tables import SCHEMAS, table_path, write_table
from steps.core.tracking import Run
from steps.mine.association import click_associations
from steps.mine.clicks import judgements
from steps.mine.engine import Engine, open_engine
from steps.mine.leakage import audit
from steps.mine.planner import idf_importances, query_terms
from steps.mine.report import associating_terms, samples
from steps.mine.triplets import MULTI_HOP, ONE_HOP, click_triplets

_EMPTY_LOG = "the log holds no impressions: nothing to mine, both tables are empty"
_PLANNERS = {"idf": idf_importances}


def run(*, ingest: Path, output: Path, params: MineParams, run: Run) -> None:
    """Mine `ingest` into `output`; UserError when an input is not as declared or an evaluation query leaks."""
    paths = {name: table_path(ingest, name) for name in ("corpus", "queries", "impressions")}
    with staged_folder(output) as folder:
        with open_engine(params.memory_limit, folder) as engine:
            tables = {name: engine.read(path) for name, path in paths.items()}
            report = _mine(engine, tables, folder, params, str(paths["queries"]))
        write_json(folder / "report.json", report)
    rows = {f"rows.{source}": float(count) for source, count in report["rows"].items()}
    run.metrics(rows | {"associations.per_query": report["associations"]["per_query"]})
    run.artifact(output / "report.json")


def _mine(
    engine: Engine, tables: dict[str, ir.Table], folder: Path, params: MineParams, queries_path: str
) -> dict[str, Any]:
    """Write the two tables below `folder` and return the report."""
    queries, corpus = tables["queries"], tables["corpus"]
    train = queries.filter(queries.split == "train")
    log = judgements(engine, tables["impressions"], queries, corpus)
    judged = log.table

    importances = engine.keep(_PLANNERS[params.planner](query_terms(engine, _of_logged_datasets(train, judged))))
    found = click_associations(
        engine,
        importances,
        judged.filter(judged.clicks > 0).select("query_id").distinct(),
        threshold=params.click_threshold,
        top_terms=params.click_top_terms,
        min_terms=params.min_terms,
        cap=params.max_associations,
    )
    mined = click_triplets(
        engine,
        judged,
        found.kept,
        max_positives=params.max_positives,
        max_negatives=params.max_negatives,
        multi_hop_weight=params.multi_hop_weight,
        seed=params.seed,
    )
    triplets = mined.table
    leakage = audit(_used_texts(engine, triplets, queries), _evaluation_texts(engine, queries), queries_path)

    associations = found.kept.select("query_id", "other_query_id", kind=ibis.literal("click"))
    _write(engine, folder, "associations", associations)
    _write(engine, folder, "triplets", triplets)

    taking_part = engine.number(importances.query_id.nunique())
    kept = engine.number(found.kept.count())
    sources = triplets.group_by("source").aggregate(rows=lambda t: t.count())
    by_source = {row["source"]: row["rows"] for row in engine.rows(sources).to_pylist()}
    rows = {source: by_source.get(source, 0) for source in (ONE_HOP, MULTI_HOP)}
    return {
        "note": _note(log.impressions, rows),
        "rows": rows,
        "queries": {
            "train": engine.number(train.count()),
            "in_triplets": engine.number(triplets.query_id.nunique()),
            "with_clicks": engine.number(judged.filter(judged.clicks > 0).query_id.nunique()),
        },
        "impressions": {"read": log.impressions, "dropped": log.dropped},
        "associations": {
            "kept": kept,
            "per_query": round(kept / max(taking_part, 1), 4),
            "queries_with_any": engine.number(found.kept.query_id.nunique()),
            "found": found.found,
            "cut_share": round(1 - kept / max(found.found, 1), 6) if found.found else 0.0,
        },
        "dropped_positives": mined.dropped,
        "refused_negatives": mined.refused_negatives,
        "leakage": leakage,
        "associating_terms": associating_terms(engine, found.kept, found.top),
        "samples": samples(engine, triplets, judged, importances, found.top, queries, corpus, seed=params.seed),
    }


def _of_logged_datasets(train: ir.Table, judged: ir.Table) -> ir.Table:
    """Training queries of the data sets that have a log; the others could receive nothing."""
    logged = train.semi_join(judged, "query_id").select("dataset").distinct()
    return train.semi_join(logged, "dataset")


def _write(engine: Engine, folder: Path, name: str, table: ir.Table) -> None:
    """Write a table sorted by all its columns, so that equal rows are equal bytes."""
    columns = SCHEMAS[name].names
    write_table(folder, name, engine.rows(table.select(columns).order_by(columns)))


def _used_texts(engine: Engine, triplets: ir.Table, queries: ir.Table) -> Iterator[tuple[str, str]]:
    """(query_id, text) of each query that a triplet names."""
    via = triplets.filter(triplets.via_query_id != "").select(query_id="via_query_id")
    used = triplets.select("query_id").union(via, distinct=True)
    yield from _texts(engine, queries.semi_join(used, "query_id"))


def _evaluation_texts(engine: Engine, queries: ir.Table) -> Iterator[tuple[str, str]]:
    """(query_id, text) of each dev and test query."""
    yield from _texts(engine, queries.filter(queries.split.isin(["dev", "test"])))


def _texts(engine: Engine, queries: ir.Table) -> Iterator[tuple[str, str]]:
    for batch in engine.batches(queries.select("query_id", "text")):
        yield from zip(batch.column("query_id").to_pylist(), batch.column("text").to_pylist(), strict=True)


def _note(impressions: int, rows: dict[str, int]) -> str:
    """What a reader must know first, or nothing."""
    if impressions == 0:
        return _EMPTY_LOG
    if not any(rows.values()):
        return "no triplet came of the log: see impressions.dropped and dropped_positives"
    return ""
