"""Which fusion, chosen on judged dev queries, and whether it beats dense search alone there beyond chance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_1samp

from steps.core.measures import Qrels, ndcg_at_10
from steps.retrieval.fusion import ReciprocalRank, WeightedSum, fuse, pooled

DEPTHS = (100, 300)
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Of equals the first is chosen: ranks before scores, short lists before long ones.
GRID: list[ReciprocalRank | WeightedSum] = [
    fusion
    for depth in DEPTHS
    for fusion in [ReciprocalRank(depth=depth), *(WeightedSum(depth=depth, weight=weight) for weight in WEIGHTS)]
]
DEEPEST = max(DEPTHS)
STANDARD = ReciprocalRank(depth=min(DEPTHS))  # where nothing is judged to choose on
SIGNIFICANT = 0.05
_FOLDS = 5

Hits = tuple[Sequence[np.ndarray], Sequence[Sequence[str]]]  # scores and document ids, one entry a query, best first


@dataclass(frozen=True)
class FusionChoice:
    """The best fusion on dev, and what it brings there: mean nDCG@10 of dense search alone and fused.

    `fused` and `p_value`, of a two-sided paired t-test, are of queries that did not choose: each fifth of them is
    measured with what the others choose. So a grid of many fusions does not win by its size.
    """

    fusion: ReciprocalRank | WeightedSum
    queries: int
    dense: float
    fused: float
    p_value: float

    @property
    def wins(self) -> bool:
        """Whether the fused list is better beyond chance."""
        return self.fused > self.dense and self.p_value < SIGNIFICANT


def trials(qrels: Qrels, query_ids: Sequence[str], dense: Hits, lexical: Hits) -> np.ndarray:
    """nDCG@10 of every query by dense search alone and by each of GRID, `(1 + len(GRID), queries)`.

    Both searches are to find DEEPEST documents where there are so many.
    """
    pairs = list(zip(zip(*dense, strict=True), zip(*lexical, strict=True), strict=True))
    pools = {depth: [pooled(pair, depth) for pair in pairs] for depth in DEPTHS}
    values = [ndcg_at_10(qrels, query_ids, dense[1], dense[0])]
    for fusion in GRID:
        best = [fuse(pool, fusion, 10) for pool in pools[fusion.depth]]
        values.append(ndcg_at_10(qrels, query_ids, [ids for _, ids in best], [scores for scores, _ in best]))
    return np.stack(values)


def choose(values: np.ndarray) -> FusionChoice:
    """The fusion with the best mean of `values`, which are those of `trials`."""
    alone, fused = values[0], values[1:]
    held_out = np.zeros(len(alone))
    fold = np.arange(len(alone)) % _FOLDS
    for each in range(_FOLDS):
        others = fused[:, fold != each] if (fold != each).any() else fused
        held_out[fold == each] = fused[_best(others)][fold == each]
    return FusionChoice(
        fusion=GRID[_best(fused)],
        queries=len(alone),
        dense=float(alone.mean()),
        fused=float(held_out.mean()),
        p_value=_p_value(held_out - alone),
    )


def _best(values: np.ndarray) -> int:
    """Row of the greatest mean; means that differ by rounding alone are equal."""
    return int(values.mean(axis=1).round(12).argmax())


def _p_value(differences: np.ndarray) -> float:
    if np.ptp(differences) > 0:
        return float(ttest_1samp(differences, 0.0).pvalue)
    return 0.0 if len(differences) > 1 and differences[0] else 1.0  # no variance to judge by
