"""Paired bootstrap: how much worse a candidate could be, given the queries that happened to be asked."""

import numpy as np

_CELLS = 4_000_000  # counts held at once: 32 MB


def resampled_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
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


def lower_bound(
    candidate: np.ndarray, champion: np.ndarray, *, margin: float, confidence: float, resamples: int, seed: int
) -> np.ndarray:
    """One-sided lower bound of mean(candidate) - (1 - margin) mean(champion); the first axis is the queries.

    At 0 or above the candidate is not inferior. Percentile bootstrap of the paired differences (Efron and Tibshirani,
    "An Introduction to the Bootstrap", 1993, ch. 13), rounded down to an observed resampling.
    """
    means = resampled_means(candidate - (1 - margin) * champion, resamples, seed)
    return np.asarray(np.quantile(means, 1 - confidence, axis=0, method="lower"))


def upper_bound(
    candidate: np.ndarray, champion: np.ndarray, *, margin: float, confidence: float, resamples: int, seed: int
) -> np.ndarray:
    """One-sided upper bound of the same difference: below 0 the candidate is worse than the margin allows."""
    means = resampled_means(candidate - (1 - margin) * champion, resamples, seed)
    return np.asarray(np.quantile(means, confidence, axis=0, method="higher"))
