"""Non-inferiority: how much worse a candidate could be, given the queries that happened to be asked. Paired bootstrap.

The promotion gate holds a candidate to the champion by it, and the evaluation a fast student to the best one.
"""

from pathlib import Path

import numpy as np
from pydantic import Field

from steps.core.errors import UserError
from steps.core.params import PARAMS, Seed, Strict, read_mapping, validated

FEWEST = 30  # queries of a data set, below which differences prove little
_CELLS = 4_000_000  # counts held at once: 32 MB


class NonInferiority(Strict):
    """A candidate is no worse when, with this confidence, it loses less than `margin`, a share of the other's mean."""

    margin: float = Field(ge=0, lt=1)
    """Share of the champion's nDCG@10 that the candidate may lose on a data set. The champion stays unless the
    candidate is no worse, on every data set.
    """
    confidence: float = Field(gt=0.5, lt=1)
    """Confidence that it loses less than the margin: one-sided, paired bootstrap over the test queries."""
    resamples: int = Field(ge=1000)
    """Resamplings of the queries."""
    seed: Seed
    """Draws the resamplings: the same evidence always gets the same decision."""

    def least(self, candidate: np.ndarray, champion: np.ndarray) -> np.ndarray:
        """One-sided lower bound of mean(candidate) - (1 - margin) mean(champion); the first axis is the queries.

        At 0 or above the candidate is not inferior. Percentile bootstrap of the paired differences (Efron and
        Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13), rounded down to an observed resampling.
        """
        return np.asarray(np.quantile(self._means(candidate, champion), 1 - self.confidence, axis=0, method="lower"))

    def most(self, candidate: np.ndarray, champion: np.ndarray) -> np.ndarray:
        """The upper bound, rounded up; below 0 the candidate is shown to be inferior."""
        return np.asarray(np.quantile(self._means(candidate, champion), self.confidence, axis=0, method="higher"))

    def _means(self, candidate: np.ndarray, champion: np.ndarray) -> np.ndarray:
        return resampled_means(candidate - (1 - self.margin) * champion, self.resamples, self.seed)


def load_noninferiority(path: Path = PARAMS) -> NonInferiority:
    """The rule of the promotion gate, in promote.policy of params.yaml."""
    promote = read_mapping(path).get("promote")
    policy = promote.get("policy") if isinstance(promote, dict) else None
    if not isinstance(policy, dict):
        raise UserError(f"{path}: promote.policy is {policy!r}; it needs margin, confidence, resamples and seed")
    named = {key: policy[key] for key in NonInferiority.model_fields if key in policy}
    return validated(NonInferiority, named, f"{path}: promote.policy")


def resampled_means(values: np.ndarray, resamples: int, seed: int | np.random.Generator) -> np.ndarray:
    """Mean over queries, drawn anew with replacement: `(queries, ...)` to `(resamples, ...)`.

    The draws depend on the seed and on the number of queries only, so two candidates are judged on the same ones.
    """
    generator = np.random.default_rng(seed)
    queries = len(values)
    block = max(1, _CELLS // queries)
    chunks = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, queries, (rows, queries)) + np.arange(rows)[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=rows * queries).reshape(rows, queries)
        chunks.append(counts.astype(np.float64) @ values / queries)
    return np.concatenate(chunks)
