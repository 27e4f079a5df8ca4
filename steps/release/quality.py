"""What serving costs: nDCG@10 on dev queries from the student in PyTorch to the encoder and index that serve."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from slimtower.common.errors import UserError
from slimtower.serving.release import Release
from steps.core.judged import JudgedSet, other_hits, tied_hits
from steps.core.measures import ndcg_at_10
from steps.release.evidence import Loss, measured_loss

DEPTH = 10


def ndcg(release: Release, queries: Sequence[JudgedSet], vectors: np.ndarray, kind: str) -> list[np.ndarray]:
    """nDCG@10 of every query over an index of the release, `(queries,)` a data set.

    `vectors` `(texts, dim)` begins with the queries' embeddings, one data set after the other.
    """
    values, start = [], 0
    for judged in queries:
        end = start + len(judged.query_ids)
        search = partial(_search, release, judged.dataset, vectors[start:end], kind)
        exact = kind == "flat" or "ann" not in release.kinds(judged.dataset)  # then the exact one serves
        take = tied_hits if exact else other_hits
        scores, hits = take(judged, judged.query_ids, search, DEPTH)
        values.append(ndcg_at_10(judged.qrels, judged.query_ids, hits, scores))
        start = end
    return values


def _search(
    release: Release, dataset: str, vectors: np.ndarray, kind: str, k: int
) -> tuple[np.ndarray, list[list[str]]]:
    return release.search(dataset, vectors, k, kind)


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
    def costliest(self) -> str:
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
            raise UserError(f"{text}; {FIXES[cost.costliest]}")
        print(f"release: {text}", file=sys.stderr)
