"""The stage: tables of ingest in, associations, triplets and report out."""

from pathlib import Path
from typing import Literal

from steps.core.files import staged_folder, write_json
from steps.core.tables import table_path
from steps.core.tracking import Run
from steps.mine.engines import open_engine
from steps.mine.from_clicks import mine_clicks
from steps.mine.from_relevance import mine_relevance
from steps.mine.params import MineParams
from steps.mine.report import as_text

Signal = Literal["click", "relevance"]
_TABLES: dict[Signal, tuple[str, ...]] = {
    "click": ("corpus", "queries", "impressions", "term_scores"),
    "relevance": ("corpus", "queries", "impressions", "relevance", "term_scores"),
}


def run(
    *,
    signal: Signal,
    ingest: Path,
    clicks: Path,
    output: Path,
    params: MineParams,
    run: Run,
) -> None:
    """Mine one signal of `ingest` into `output`; the cell `relevance` adds to what the cell `click` left in `clicks`.

    UserError when an input is not as declared or an evaluation query leaks.
    """
    paths = {name: table_path(ingest, name) for name in _TABLES[signal]}
    source = str(paths["queries"])
    with staged_folder(output) as folder:
        with open_engine(params, folder) as engine:
            tables = {name: engine.read(path) for name, path in paths.items()}
            if signal == "click":
                report = mine_clicks(engine, tables, folder, params, source)
            else:
                report = mine_relevance(engine, tables, clicks, folder, params, source)
        write_json(folder / "report.json", report)
        (folder / "report.md").write_text(as_text(report), encoding="utf-8")
    rows = {f"rows.{name}": float(count) for name, count in report["rows"].items()}
    run.metrics(rows | {"associations.per_query": report["associations"]["per_query"]})
    run.artifact(output / "report.json")
    run.artifact(output / "report.md")
