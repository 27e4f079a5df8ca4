"""What a loss of nDCG@10 on some queries proves: a limit is passed on evidence, never by chance."""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import ttest_1samp

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
    """Compare the nDCG@10 of the same queries before and after a change, each `(queries,)`.

    The test is a paired t-test that the mean of `(1 - limit) * before - after` is above 0.
    """
    first, second = before.astype(np.float64), after.astype(np.float64)
    excess = (1 - limit) * first - second
    if np.ptp(excess) > 0:
        p_value = float(ttest_1samp(excess, 0.0, alternative="greater").pvalue)
    else:  # one query, or all alike: a t-test has no variance to judge by
        p_value = 0.0 if len(excess) > 1 and excess[0] > 0 else 1.0
    mean, mean_after = float(first.mean()), float(second.mean())
    return Loss(len(first), mean, mean_after, (mean - mean_after) / mean if mean else 0.0, limit, p_value)
