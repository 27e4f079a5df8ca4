"""The stage: tables of ingest in, associations, triplets and report out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import ibis

from slimtower.common.files import staged_folder, write_json
from steps.core.corpus import corpus_template
from steps.core.tables import table_path
from steps.mine.cell import Cell, Earlier
from steps.mine.engine import open_engine
from steps.mine.from_clicks import mine_clicks
from steps.mine.from_judgements import mine_judged
from steps.mine.from_relevance import mine_relevance
from steps.mine.params import MineParams
from steps.mine.report import as_text
from steps.tracking.runs import Run

Signal = Literal["click", "judged", "relevance"]  # each adds to the triplets of the one before
_TABLES = ("corpus", "queries", "qrels", "given_triplets", "impressions", "term_scores")


def run(
    *,
    signal: Signal,
    ingest: Path,
    input_folders: Sequence[Path],
    earlier: Path | None,
    output: Path,
    params: MineParams,
    run: Run,
) -> None:
    """Mine one signal of `ingest` into `output`, and what the cell in `earlier` left, which is None for `click` alone.

    input_folders: of searchers' candidates (judged) or of rankers' scores (relevance). UserError when an input is not
    as declared or an evaluation query leaks.
    """
    names = [*_TABLES, "relevance"] if signal == "relevance" else _TABLES
    paths = {name: table_path(ingest, name) for name in names}
    with staged_folder(output) as folder:
        with open_engine(params, folder) as engine:
            tables = {name: engine.scan(path) for name, path in paths.items()}
            unread = [field for field in ("title", "topic") if not corpus_template(ingest).names(field)]
            tables["corpus"] = tables["corpus"].mutate(**{field: ibis.literal("") for field in unread})
            cell = Cell(engine, tables, folder, params, str(paths["queries"]))
            if earlier is None:
                report = mine_clicks(cell)
            else:
                name, mine = ("candidates", mine_judged) if signal == "judged" else ("relevance", mine_relevance)
                scans = [engine.scan(table_path(input_folder, name)) for input_folder in input_folders]
                report = mine(cell, scans, Earlier(engine, earlier))
        write_json(folder / "report.json", report)
        (folder / "report.md").write_text(as_text(report), encoding="utf-8")
    rows = {f"rows.{name}": float(count) for name, count in report["rows"].items()}
    run.metrics(rows | {"associations.per_query": report["associations"]["per_query"]})
    run.artifact(output / "report.json")
    run.artifact(output / "report.md")
