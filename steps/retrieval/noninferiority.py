"""Non-inferiority: how much worse a candidate could be, given the queries that happened to be asked. Paired bootstrap.

The promotion gate compares a candidate with the champion by this rule. The evaluation compares students with the
teacher and with each other by it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import Field

from slimtower.common.errors import UserError
from slimtower.common.settings import PARAMS, Strict, read_mapping, validated
from steps.core.params import Seed

FEWEST = 30  # queries of a data set, below which differences prove little
_CELLS = 4_000_000  # counts held at once: 32 MB
_POWER = 0.8  # chance that as many queries as `Judgement.enough` show what is true
HOPELESS = 20  # times as many queries as there are: nobody will judge so many

Answer = Literal["yes", "no", "cannot tell"]


@dataclass(frozen=True)
class Judgement:
    """May a candidate replace a reference on one data set? By nDCG@10, as shares of the reference's mean."""

    answer: Answer
    change: float
    """candidate / reference - 1."""
    low: float
    """One-sided lower bound of the change."""
    high: float
    """One-sided upper bound of the change, corrected for the number of data sets that are compared."""
    queries: int
    enough: int | None
    """Queries that would show a yes with a chance of 80 %, if the mean and spread of the differences stay as they are.
    None if the mean loses more than the margin, or so nearly that 20 times as many queries would not show it.
    """


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

    def lower_bound(self, candidate: np.ndarray, champion: np.ndarray) -> np.ndarray:
        """One-sided lower bound of mean(candidate) - (1 - margin) mean(champion); the first axis is the queries.

        At 0 or above the candidate is not inferior. Percentile bootstrap of the paired differences (Efron and
        Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13), rounded down to an observed resampling.
        """
        return np.asarray(np.quantile(self._means(candidate, champion), 1 - self.confidence, axis=0, method="lower"))

    def upper_bound(self, candidate: np.ndarray, champion: np.ndarray) -> np.ndarray:
        """The upper bound, rounded up; below 0 the candidate is shown to be inferior."""
        return np.asarray(np.quantile(self._means(candidate, champion), self.confidence, axis=0, method="higher"))

    def judge(self, candidate: np.ndarray, reference: np.ndarray, compared: int = 1) -> Judgement:
        """Compare nDCG@10 by query, `(queries,)` each in the same order; the reference's mean must not be 0.

        `compared`: data sets on all of which the candidate has to pass. A no on one is enough, so the upper bound is
        corrected by Bonferroni. Fewer than FEWEST queries cannot tell: their bootstrap's interval is too narrow.
        """
        stricter = self.model_copy(update={"confidence": 1 - (1 - self.confidence) / compared})
        low, high = float(self.lower_bound(candidate, reference)), float(stricter.upper_bound(candidate, reference))
        answer: Answer = "yes" if low >= 0 else "no" if high < 0 else "cannot tell"
        mean = float(reference.mean())
        return Judgement(
            answer=answer if len(reference) >= FEWEST else "cannot tell",
            change=float(candidate.mean()) / mean - 1,
            low=low / mean - self.margin,
            high=high / mean - self.margin,
            queries=len(reference),
            enough=self._enough(candidate - (1 - self.margin) * reference),
        )

    def _enough(self, values: np.ndarray) -> int | None:
        """Queries that show with a chance of 80 % that the mean of such values, `(queries,)`, is above 0.

        The sample size of a one-sided z test: ((z_confidence + z_power) sd / mean)^2.
        """
        mean = float(values.mean())
        if mean <= 0 or len(values) < 2:
            return None
        quantiles = NormalDist().inv_cdf(self.confidence) + NormalDist().inv_cdf(_POWER)
        enough = math.ceil((quantiles * float(values.std(ddof=1)) / mean) ** 2)
        return max(FEWEST, enough) if enough <= HOPELESS * len(values) else None

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

    The draws depend on the seed and the number of queries alone, so two candidates are judged on the same ones.
    """
    queries = len(values)
    few = isinstance(seed, int) and resamples * queries <= _CELLS
    drawn = [_drawn_once(queries, resamples, seed)] if few else _drawn(queries, resamples, seed)
    return np.concatenate([counts @ values / queries for counts in drawn])


def _drawn(queries: int, resamples: int, seed: int | np.random.Generator) -> Iterator[np.ndarray]:
    """How often each query is drawn, `(rows, queries)`, some of the resamplings at a time."""
    generator = np.random.default_rng(seed)
    block = max(1, _CELLS // queries)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        indices = generator.integers(0, queries, (rows, queries)) + np.arange(rows)[:, None] * queries
        counts = np.bincount(indices.ravel(), minlength=rows * queries).reshape(rows, queries)
        yield counts.astype(np.float64)


@lru_cache(maxsize=1)
def _drawn_once(queries: int, resamples: int, seed: int) -> np.ndarray:
    (counts,) = _drawn(queries, resamples, seed)
    return counts
