"""What serving costs: nDCG@10 on dev queries from the student in PyTorch to the encoder and index that serve."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from steps.core.errors import UserError
from steps.core.release import Release
from steps.core.tables import read_table
from steps.release.parity import DEPTH, ndcg_at_10, relative_loss


@dataclass(frozen=True)
class DevQueries:
    """The dev queries of a data set that have a relevant document, `qrels[query][doc] = grade`."""

    dataset: str
    ids: list[str]
    texts: list[str]
    qrels: dict[str, dict[str, int]]


def read_dev_queries(ingest: Path, datasets: Sequence[str]) -> list[DevQueries]:
    """Judged dev queries, one entry a data set that has any, in the order of `datasets`."""
    grades: dict[str, dict[str, int]] = defaultdict(dict)
    for row in _dev(ingest, "qrels"):
        grades[row["query_id"]][row["doc_id"]] = row["grade"]
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in _dev(ingest, "queries"):
        if any(grade > 0 for grade in grades[row["query_id"]].values()):
            found[row["dataset"]].append((row["query_id"], row["text"]))
    return [
        DevQueries(name, [q for q, _ in rows], [text for _, text in rows], {q: grades[q] for q, _ in rows})
        for name in datasets
        if (rows := sorted(found[name]))
    ]


def _dev(ingest: Path, name: str) -> list[dict[str, Any]]:
    table = read_table(ingest, name)
    rows: list[dict[str, Any]] = table.filter(pc.equal(table["split"], "dev")).to_pylist()
    return rows


@dataclass(frozen=True)
class Embedded:
    """Embeddings of texts `(texts, width)` by the student, its fp32 export, and the encoder that serves."""

    model: np.ndarray
    exported: np.ndarray
    served: np.ndarray

    def rows(self, start: int, stop: int) -> "Embedded":
        """The embeddings of some texts."""
        return Embedded(*(getattr(self, name)[start:stop] for name in ("model", "exported", "served")))


@dataclass(frozen=True)
class Cost:
    """Mean nDCG@10 of one data set's dev queries after each step from the student to what serves."""

    queries: int
    model: float
    exported: float
    served: float
    approximate: float

    @property
    def total(self) -> float:
        """Share of the student's nDCG@10 that is lost."""
        return relative_loss(self.model, self.approximate)

    def parts(self) -> dict[str, float]:
        """Loss of each step as a share of the student's nDCG@10; they add up to the total. Negative = gained."""
        steps = [("export", self.exported), ("precision", self.served), ("index", self.approximate)]
        losses, before = {}, self.model
        for name, after in steps:
            losses[name] = (before - after) / self.model if self.model else 0.0
            before = after
        return losses

    def as_dict(self) -> dict[str, object]:
        """Names and values, losses included."""
        return asdict(self) | {"loss": self.parts() | {"total": self.total}}


def mean_ndcg(release: Release, queries: DevQueries, vectors: np.ndarray, kind: str) -> float:
    """Mean nDCG@10 of the queries' embeddings over an index of the release."""
    _, hits = release.search(queries.dataset, vectors, DEPTH, kind)
    return float(ndcg_at_10(dict(zip(queries.ids, hits, strict=True)), queries.qrels).mean())


def measure_costs(release: Release, queries: Sequence[DevQueries], embedded: Embedded) -> dict[str, Cost]:
    """Cost of serving by data set; `embedded` begins with the queries' vectors, one data set after the other."""
    costs, start = {}, 0
    for asked in queries:
        part, start = embedded.rows(start, start + len(asked.ids)), start + len(asked.ids)
        costs[asked.dataset] = Cost(
            queries=len(asked.ids),
            model=mean_ndcg(release, asked, part.model, "flat"),
            exported=mean_ndcg(release, asked, part.exported, "flat"),
            served=mean_ndcg(release, asked, part.served, "flat"),
            approximate=mean_ndcg(release, asked, part.served, "ann"),
        )
    return costs


MENDS = {
    "export": "the export differs from the student: set release.format to another one",
    "precision": "set release.precision: fp32",
    "index": "raise index.target_recall, or choose another index.kind",
}


def check_costs(costs: Mapping[str, Cost], limit: float) -> None:
    """UserError for the first data set that loses more than `limit`; it says which part costs what."""
    for dataset, cost in costs.items():
        if cost.total <= limit:
            continue
        parts = cost.parts()
        listed = ", ".join(f"{name} {loss:.2%}" for name, loss in parts.items())
        raise UserError(
            f"release.total_ndcg_loss: serving loses {cost.total:.2%} of nDCG@10 on dev queries of {dataset!r}"
            f" ({cost.model:.4f} to {cost.approximate:.4f}), more than {limit:.2%}: {listed};"
            f" {MENDS[max(parts, key=lambda name: parts[name])]}"
        )
