"""The tables of a cell: rows with keys become those that other stages read, and what the cell before left."""

from pathlib import Path
from shutil import copyfile
from typing import Any

import ibis
import ibis.expr.types as ir

from slimtower.common.files import read_json
from steps.core.tables import table_path
from steps.mine.engine import Engine

_TABLES = ("associations", "triplets")
_NAMES = ["query_id", "positive_id", "negative_id", "source", "via_query_id"]  # of a triplet


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


class Earlier:
    """Associations, triplets and report of a cell, in `folder`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.folder = folder
        self.report: dict[str, Any] = read_json(folder / "report.json")
        self.associations, self.triplets = (engine.scan(table_path(folder, name)) for name in _TABLES)

    @property
    def rows(self) -> dict[str, int]:
        """Triplets by source."""
        rows: dict[str, int] = self.report["rows"]
        return rows

    def passed_on(self, folder: Path, sources: tuple[str, ...]) -> dict[str, Any]:
        """Copy the tables into `folder`; the report, with nothing of these sources."""
        for name in _TABLES:
            copyfile(self.folder / f"{name}.parquet", folder / f"{name}.parquet")
        return self.report | {"rows": self.rows | dict.fromkeys(sources, 0)}

    def sampled(self, triplets: ir.Table, engine: Engine) -> list[dict[str, Any]]:
        """The report's samples that are among `triplets`."""
        query_ids = [row["query"]["id"] for row in self.report["samples"]]
        if not query_ids:
            return []
        rows = engine.rows(triplets.filter(triplets.query_id.isin(query_ids)).select(_NAMES)).to_pylist()
        still = {tuple(row.values()) for row in rows}
        return [row for row in self.report["samples"] if _names(row) in still]


def _names(sample: dict[str, Any]) -> tuple[str, ...]:
    """The ids of a sampled triplet, as in a row of the table."""
    via = sample["via_query"]["id"] if sample["via_query"] else ""
    ids = (sample[name]["id"] for name in ("query", "positive", "negative"))
    return (*ids, sample["source"], via)
