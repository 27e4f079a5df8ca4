"""What serving costs, from the student in PyTorch to what serves, in nDCG@10 on dev queries, and what a loss proves."""

import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
from scipy.stats import ttest_1samp

from slimtower.common.errors import UserError
from slimtower.serving.release import Release
from steps.core.judged import JudgedSet, other_hits, tied_hits
from steps.core.measures import ndcg_at_10

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Loss:
    """What a change costs in mean nDCG@10 on `queries` queries, against the most that it may cost.

    `share`: part of the mean before that is gone; negative where something was gained. `p_value`: how often a true loss
    of just `limit` would look at least this bad; one-sided.
    """

    queries: int
    before: float
    after: float
    share: float
    limit: float
    p_value: float

    @property
    def within(self) -> bool:
        """Whether the loss, as measured, is within the limit."""
        return self.share <= self.limit

    @property
    def proven(self) -> bool:
        """Whether the queries are evidence that the loss is above the limit."""
        return not self.within and self.p_value <= SIGNIFICANT

    def as_dict(self) -> dict[str, object]:
        """Names and values, and whether the limit was passed on evidence."""
        return asdict(self) | {"proven": self.proven}

    def __str__(self) -> str:
        verdict = "is proven" if self.proven else "is not proven"
        return (
            f"{self.share:.2%} of nDCG@10 on {self.queries} dev queries ({self.before:.4f} to {self.after:.4f}); that"
            f" more than {self.limit:.2%} is lost {verdict} (p = {self.p_value:.2g})"
        )


def measured_loss(before: np.ndarray, after: np.ndarray, limit: float) -> Loss:
    """Compare nDCG@10 of the same queries, `(queries,)`, before and after a change, by a one-sided paired t-test.

    It asks whether the mean of `(1 - limit) * before - after` is above 0.
    """
    first, second = before.astype(np.float64), after.astype(np.float64)
    excess = (1 - limit) * first - second
    if np.ptp(excess) > 0:
        p_value = float(ttest_1samp(excess, 0.0, alternative="greater").pvalue)
    else:  # one query, or all alike: a t-test has no variance to judge by
        p_value = 0.0 if len(excess) > 1 and excess[0] > 0 else 1.0
    mean, mean_after = float(first.mean()), float(second.mean())
    return Loss(len(first), mean, mean_after, (mean - mean_after) / mean if mean else 0.0, limit, p_value)


DEPTH = 10


def ndcg(release: Release, queries: Sequence[JudgedSet], vectors: np.ndarray, kind: str) -> list[np.ndarray]:
    """nDCG@10 of every query over an index of the release, `(queries,)` a data set.

    `vectors` `(texts, dim)` begins with the queries' embeddings, one data set after the other.
    """
    values = []
    for judged, rows in zip(queries, rows_of(queries), strict=True):
        exact = kind == "flat" or "ann" not in release.kinds(judged.dataset)  # then the exact one serves
        take = tied_hits if exact else other_hits
        search = partial(release.search, judged.dataset, vectors[rows], kind=kind)
        scores, hits = take(judged, judged.query_ids, search, DEPTH)
        values.append(ndcg_at_10(judged.qrels, judged.query_ids, hits, scores))
    return values


def rows_of(queries: Sequence[Sized | JudgedSet]) -> list[slice]:
    """Rows of the queries of each data set, if they lie one data set behind the other."""
    sizes = [len(judged.query_ids if isinstance(judged, JudgedSet) else judged) for judged in queries]
    ends = [*accumulate(sizes)]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@dataclass(frozen=True)
class Cost:
    """What serving costs on one data set, and the parts of it by export, precision and index; negative = gained."""

    total: Loss
    steps: dict[str, float]

    @property
    def costliest(self) -> str:
        """The step that costs most."""
        return max(self.steps, key=lambda name: self.steps[name])

    def as_dict(self) -> dict[str, object]:
        """Names and values."""
        return {"total": self.total.as_dict(), "steps": self.steps}


def cost_of(model: np.ndarray, exported: np.ndarray, served: np.ndarray, approximate: np.ndarray, limit: float) -> Cost:
    """The cost of serving, from nDCG@10 of the same queries, `(queries,)` each.

    By the student, its fp32 export and what serves, over the exact index, and by what serves over the approximate one.
    """
    means = [float(values.mean()) for values in (model, exported, served, approximate)]
    names = ("export", "precision", "index")
    shares = {
        name: (before - after) / means[0] if means[0] else 0.0
        for name, (before, after) in zip(names, pairwise(means), strict=True)
    }
    return Cost(measured_loss(model, approximate, limit), shares)


FIXES = {
    "export": "the export differs from the student: report the model",
    "precision": "set release.precision: auto",
    "index": "raise index.target_recall, or choose another index.kind",
}


def check_costs(costs: Mapping[str, Cost]) -> None:
    """UserError for the first data set whose loss is proven to be above the limit; an unproven one goes to stderr."""
    for dataset, cost in costs.items():
        if cost.total.within:
            continue
        listed = ", ".join(f"{name} {loss:.2%}" for name, loss in cost.steps.items())
        text = f"on {dataset!r} serving loses {cost.total}: {listed}"
        if cost.total.proven:
            raise UserError(f"release: {text}; {FIXES[cost.costliest]}")
        print(f"release: {text}", file=sys.stderr)
