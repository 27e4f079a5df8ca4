"""Is a trained model better than what was there before it?"""

import numpy as np
from scipy.stats import ttest_rel

SIGNIFICANT = 0.05


def p_of_gain(before: np.ndarray, after: np.ndarray) -> float:
    """p-value of the one-sided paired t-test that `after` is larger, both `(queries,)`; 1 where it has nothing to say.

    So it is for a single query, and where all differences are equal.
    """
    return float(ttest_rel(after, before, alternative="greater").pvalue) if np.ptp(after - before) > 0 else 1.0


def describe_gain(subject: str, baseline: str, higher: bool, better: bool, queries: int, advice: str) -> str:
    """What a person is told of a comparison: a gain, one that may be chance, or a WARNING with what to do."""
    if better:
        return f"{subject} beats {baseline}"
    if higher:
        return f"{subject} ranks better than {baseline}, which on {queries:,} queries may be chance; judge more"
    return f"WARNING: {subject} does not rank better than {baseline}; {advice}"


def is_better(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether `after` is larger in the mean, and that significantly."""
    return bool(after.mean() > before.mean() and p_of_gain(before, after) <= SIGNIFICANT)
