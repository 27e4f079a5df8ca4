"""What the cell before this one left."""

from pathlib import Path
from shutil import copyfile
from typing import Any

import ibis.expr.types as ir

from slimtower.common.files import read_json
from steps.core.tables import table_path
from steps.mine.engine import Engine

_TABLES = ("associations", "triplets")


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


_NAMES = ["query_id", "positive_id", "negative_id", "source", "via_query_id"]


def _names(sample: dict[str, Any]) -> tuple[str, ...]:
    """The ids of a sampled triplet, as in a row of the table."""
    via = sample["via_query"]["id"] if sample["via_query"] else ""
    ids = (sample[name]["id"] for name in ("query", "positive", "negative"))
    return (*ids, sample["source"], via)
