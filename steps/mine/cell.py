"""What the cells of mining share: keyed tables, associations, the leak audit, the earlier cell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import copyfile
from typing import Any

import ibis
import ibis.expr.types as ir

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.leakage import EVALUATION_SPLITS, EXAMPLES, Leak, refuse_leaks
from steps.core.tables import table_path
from steps.mine.association import Associations
from steps.mine.catalogue import keyed_documents, keyed_queries
from steps.mine.engine import Engine
from steps.mine.params import MineParams
from steps.mine.planner import importances
from steps.mine.triplets import Signal

_TABLES = ("associations", "triplets")
_NAMES = ["query_id", "positive_id", "negative_id", "source", "via_query_id"]  # of a triplet


@dataclass(frozen=True)
class Cell:
    """The tables of ingest in an engine, knobs, the folder to write to, and what errors call the queries' table."""

    engine: Engine
    tables: Mapping[str, ir.Table]
    folder: Path
    params: MineParams
    source: str

    @cached_property
    def queries(self) -> ir.Table:
        """All queries, see `keyed_queries`."""
        return keyed_queries(self.engine, self.tables["queries"])

    @cached_property
    def train(self) -> ir.Table:
        """The training queries."""
        return self.queries.filter(self.queries.split == "train")

    def documents(self, *naming: ir.Table) -> ir.Table:
        """The documents that these tables (doc_id, ...) name, see `keyed_documents`."""
        named = ibis.union(*(table.select("doc_id") for table in naming), distinct=True)
        return keyed_documents(self.engine, self.tables["corpus"].semi_join(named, "doc_id"))

    def associate(
        self,
        associate: Callable[..., Associations],
        signal: Signal,
        evidence: ir.Table,
        threshold: float,
        top_terms: int,
    ) -> tuple[ir.Table, Associations]:
        """Importances of the queries of data sets in `evidence`, and associations to them from queries with positives.

        Queries of other data sets can get none.
        """
        datasets = self.train.semi_join(evidence, "query").select("dataset").distinct()
        queries = self.train.semi_join(datasets, "dataset")
        planned = importances(self.engine, queries, self.params, self.tables["term_scores"])
        sources = signal.positives.select("query").distinct()
        cap = self.params.max_associations
        return planned, associate(self.engine, planned, sources, threshold=threshold, top_terms=top_terms, cap=cap)

    def write(self, associations: ir.Table, triplets: ir.Table) -> None:
        """Write both tables."""
        for name, rows in zip(_TABLES, (associations, triplets), strict=True):
            self.engine.write(self.folder, name, rows)

    def association_rows(self, associations: ir.Table, kind: str) -> ir.Table:
        """Associations as rows of the table `associations`."""
        ids = self.queries.select("query", "query_id")
        named = associations.join(ids, "query").select("other_query", "query_id")
        other_ids = ids.select(other_query="query", other_query_id="query_id")
        return named.join(other_ids, "other_query").select("query_id", "other_query_id").mutate(kind=ibis.literal(kind))

    def triplet_rows(self, triplets: ir.Table, documents: ir.Table) -> ir.Table:
        """Triplets as rows of the table `triplets`."""
        ids, docs = self.queries.select("query", "query_id"), documents.select("doc", "doc_id")
        table = triplets.join(ids, "query").drop("query")
        table = table.left_join(ids.select(via="query", via_query_id="query_id"), "via").select(table, "via_query_id")
        table = table.join(docs.select(positive="doc", positive_id="doc_id"), "positive").drop("positive")
        table = table.join(docs.select(negative="doc", negative_id="doc_id"), "negative").drop("negative")
        via_query_id, weight = table.via_query_id.fill_null(""), table.weight.cast("float32")
        return table.select(*_NAMES[:4], via_query_id=via_query_id, weight=weight)


class Earlier:
    """Associations, triplets and report of a cell, in `folder`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.folder = folder
        self.report: dict[str, Any] = read_json(folder / "report.json")
        self.rows: dict[str, int] = self.report["rows"]  # triplets by source
        self.associations, self.triplets = (engine.scan(table_path(folder, name)) for name in _TABLES)

    def passed_on(self, folder: Path, sources: tuple[str, ...]) -> dict[str, Any]:
        """Copy the tables into `folder`; the report, with nothing of these sources."""
        for name in _TABLES:
            copyfile(self.folder / f"{name}.parquet", folder / f"{name}.parquet")
        return self.extended({"rows": dict.fromkeys(sources, 0)})

    def extended(self, sections: dict[str, Any]) -> dict[str, Any]:
        """The report with these sections; what a dictionary has already stays in it."""
        merged = {name: self.report.get(name, {}) | new for name, new in sections.items() if isinstance(new, dict)}
        return self.report | sections | merged

    def sampled(self, triplets: ir.Table, engine: Engine) -> list[dict[str, Any]]:
        """The report's samples that are among `triplets`."""
        samples: list[dict[str, Any]] = self.report["samples"]
        query_ids = [row["query"]["id"] for row in samples]
        if not query_ids:
            return []
        rows = engine.rows(triplets.filter(triplets.query_id.isin(query_ids)).select(_NAMES)).to_pylist()
        remaining = {tuple(row.values()) for row in rows}
        return [row for row in samples if _names(row) in remaining]


def _names(sample: dict[str, Any]) -> tuple[str, ...]:
    via = sample["via_query"]["id"] if sample["via_query"] else ""
    return (*(sample[name]["id"] for name in ("query", "positive", "negative")), sample["source"], via)


def audit(engine: Engine, used: ir.Table, queries: ir.Table, source: str) -> dict[str, int]:
    """Compare the queries of associations and triplets with the evaluation queries; UserError when any leaks.

    used: (query), distinct; queries: as `keyed_queries`. UserError, too, if one belongs to no split that trains.
    """
    mine = engine.keep(used.join(queries, "query"))
    evaluation = queries.filter(queries.split.isin(list(EVALUATION_SPLITS)))
    compared = engine.number(mine.count())
    leaks = mine.join(evaluation.select("text_key", twin_id="query_id"), "text_key")
    first = leaks.select("query_id", "text", "twin_id").order_by("query_id", "twin_id").limit(EXAMPLES)
    examples = engine.rows(first).to_pylist()
    refuse_leaks(
        [Leak(source, row["text"], row["twin_id"]) for row in examples],
        engine.number(leaks.query_id.nunique()) if examples else 0,
        compared,
        "give queries of equal text the same split in ingest",
    )
    strangers = engine.rows(mine.filter(mine.split != "train").order_by("query_id").limit(1)).to_pylist()
    if strangers:
        row = strangers[0]
        raise UserError(
            f"{source}: {row['query_id']} ({row['text'][:80]!r}) of the split {row['split']!r} trains; run `ingest` and"
            " `mine` again"
        )
    return {"evaluation_queries": engine.number(evaluation.count()), "queries_compared": compared, "leaks": 0}


def used_queries(associations: ir.Table, triplets: ir.Table) -> ir.Table:
    """(query): every query of an association or a triplet."""
    columns = [
        associations.select("query"),
        associations.select(query="other_query"),
        triplets.select("query"),
        triplets.filter(triplets.via.notnull()).select(query="via"),
    ]
    return ibis.union(*columns).distinct()
