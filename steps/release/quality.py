"""What serving costs: nDCG@10 on dev queries from the student in PyTorch to the encoder and index that serve."""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from steps.core.errors import UserError
from steps.core.tables import read_table
from steps.release.evidence import Loss, measured_loss
from steps.release.parity import DEPTH, ndcg_at_10
from steps.serving.release import Release


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


def ndcg(release: Release, queries: Sequence[DevQueries], vectors: np.ndarray, kind: str) -> list[np.ndarray]:
    """nDCG@10 of every query over an index of the release, `(queries,)` a data set.

    `vectors` `(texts, dim)` begins with the queries' embeddings, one data set after the other.
    """
    values, start = [], 0
    for asked in queries:
        _, hits = release.search(asked.dataset, vectors[start : start + len(asked.ids)], DEPTH, kind)
        values.append(ndcg_at_10(dict(zip(asked.ids, hits, strict=True)), asked.qrels))
        start += len(asked.ids)
    return values


@dataclass(frozen=True)
class Values:
    """nDCG@10 of the same queries by the student, its fp32 export, what serves, and that over the approximate index.

    Each is `(queries,)`; the first three search the exact index.
    """

    model: np.ndarray
    exported: np.ndarray
    served: np.ndarray
    approximate: np.ndarray


@dataclass(frozen=True)
class Cost:
    """What serving costs on one data set, and the share of it that each step has.

    `steps`: losses by `export`, `precision` and `index` as shares of the student's nDCG@10; they add up to the total.
    Negative = gained.
    """

    total: Loss
    steps: dict[str, float]

    @property
    def dearest(self) -> str:
        """The step that costs most."""
        return max(self.steps, key=lambda name: self.steps[name])

    def as_dict(self) -> dict[str, object]:
        """Names and values."""
        return {"total": self.total.as_dict(), "steps": self.steps}


def cost_of(values: Values, limit: float) -> Cost:
    """The cost of serving, against the most that it may be."""
    model = float(values.model.mean())
    steps, before = {}, model
    for name, after in (("export", values.exported), ("precision", values.served), ("index", values.approximate)):
        mean = float(after.mean())
        steps[name] = (before - mean) / model if model else 0.0
        before = mean
    return Cost(measured_loss(values.model, values.approximate, limit), steps)


FIXES = {
    "export": "the export differs from the student: set release.format to another one",
    "precision": "set release.precision: auto",
    "index": "raise index.target_recall, or choose another index.kind",
}


def check_costs(costs: Mapping[str, Cost]) -> None:
    """UserError for the first data set whose loss is proven to be above the limit; it says which part costs what.

    A loss above the limit that its queries do not prove is told on stderr.
    """
    for dataset, cost in costs.items():
        if cost.total.within:
            continue
        listed = ", ".join(f"{name} {loss:.2%}" for name, loss in cost.steps.items())
        text = f"release.total_ndcg_loss: on {dataset!r} serving loses {cost.total}: {listed}"
        if cost.total.proven:
            raise UserError(f"{text}; {FIXES[cost.dearest]}")
        print(f"release: {text}", file=sys.stderr)
