"""Click propensities: how much more often a result is looked at on one rank than on another, from the log alone.

Position-based model: P(click on pair at rank) = propensity_rank * attraction_pair, a pair being a document shown to a
query. EM over both factors (Wang et al. 2018, Position Bias Estimation for Unbiased Learning to Rank in Personal
Search) is biased when a pair has few impressions, as in most logs: an attraction costs a parameter a pair. A common
prior on the attractions fixes that only if attraction and rank are independent, which a ranker of any use prevents.

Instead, the attractions are conditioned out: given that a pair got C clicks, a click fell on rank r with the share

    shown_r * propensity_r / sum over the pair's ranks s of shown_s * propensity_s

whatever the attraction. At the true propensities the gradient of this log-likelihood has mean zero for 0/1 clicks and
for any dependence of attraction on rank (fixed-effects Poisson estimator, Wooldridge 1999, Distribution-free
estimation of some nonlinear panel data models). It is maximised by minorise-maximise steps (Hunter 2004, MM algorithms
for generalized Bradley-Terry models), which like EM's never lower it; in log propensities it is concave.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from slimtower.common.errors import UserError


class Propensities(NamedTuple):
    """Estimated examination propensities, relative to rank 1."""

    values: np.ndarray
    """float64 (max_rank,), values[0] == 1, others may exceed 1; the last is of rank max_rank and all ranks after it."""
    iterations: int
    """Steps taken."""
    pairs_used: int
    """Pairs shown at two or more ranks and clicked: the others say nothing of propensities."""


class _Log(NamedTuple):
    """One row for each (pair, rank), sorted; pairs numbered from 0 without gaps, ranks from 0."""

    pair: np.ndarray
    rank: np.ndarray
    impressions: np.ndarray
    clicks: np.ndarray
    clicks_of_pair: np.ndarray  # (pairs,)
    clicks_of_rank: np.ndarray  # (ranks,)


def estimate(
    impressions: np.ndarray,
    clicks: np.ndarray,
    pair: np.ndarray,
    rank: np.ndarray,
    *,
    iterations: int,
    tolerance: float,
    max_rank: int,
) -> Propensities:
    """Estimate the propensities of ranks 1..max_rank; the result does not depend on the order of the rows.

    Args: int64 `(n,)` each: impressions and clicks of a pair at a rank; pairs, numbers from 0; ranks, from 1, those
    beyond max_rank count as max_rank. Stops after `iterations` steps, or when no propensity changed by `tolerance` of
    itself. UserError when the log does not tie every rank to rank 1.
    """
    log = _informative(impressions, clicks, pair, np.minimum(rank, max_rank) - 1, max_rank)
    _require_ties(log)

    values, step_count, change = np.ones(max_rank), 0, np.inf
    while step_count < iterations and change >= tolerance:
        before, values, step_count = values, _step(log, values), step_count + 1
        change = np.abs(values / before - 1).max()
    return Propensities(values, step_count, len(log.clicks_of_pair))


def inverse_weights(propensities: Propensities, clip: float) -> np.ndarray:
    """What a click at each rank counts for: min(1 / propensity, clip), float64 (max_rank,)."""
    return np.minimum(1 / propensities.values, clip)


def _informative(impressions: np.ndarray, clicks: np.ndarray, pair: np.ndarray, rank: np.ndarray, ranks: int) -> _Log:
    """Rows added up by (pair, rank), of the pairs that were shown at two or more ranks and clicked."""
    keys, row = np.unique(pair * ranks + rank, return_inverse=True)
    pair, rank = keys // ranks, keys % ranks
    impressions, clicks = (np.bincount(row, counts, len(keys)) for counts in (impressions, clicks))
    tells = (np.bincount(pair) > 1) & (np.bincount(pair, clicks) > 0)
    selected = tells[pair] & (impressions > 0)
    number = np.unique(pair[selected], return_inverse=True)[1]
    rank, impressions, clicks = rank[selected], impressions[selected], clicks[selected]
    return _Log(number, rank, impressions, clicks, np.bincount(number, clicks), np.bincount(rank, clicks, ranks))


def _shares(log: _Log, values: np.ndarray) -> np.ndarray:
    expected = log.impressions * values[log.rank]
    return np.asarray(expected / np.bincount(log.pair, expected)[log.pair])


def _step(log: _Log, values: np.ndarray) -> np.ndarray:
    """One minorise-maximise step: clicks of a rank over the clicks that propensity 1 there would have brought."""
    expected = np.bincount(log.rank, log.clicks_of_pair[log.pair] * _shares(log, values), len(values))
    raised = values * log.clicks_of_rank / expected
    return np.asarray(raised / raised[0])


def _require_ties(log: _Log) -> None:
    """UserError unless every rank has one finite, positive propensity relative to rank 1.

    That is so when from each rank one comes to rank 1 and back, going from a rank r to a rank s where a pair was shown
    at both and clicked at s (Ford 1957, the condition for Bradley-Terry models).
    """
    fix = "mine more sessions, or set mine.debias.method: none"
    if not len(log.pair):
        raise UserError(f"mine.debias.method: no clicked result of the log was shown at two ranks; {fix}")
    ranks = len(log.clicks_of_rank)
    reach = np.zeros((ranks, ranks), dtype=bool)
    for to in range(ranks):
        clicked_there = np.bincount(log.pair, (log.rank == to) & (log.clicks > 0)) > 0
        reach[log.rank[clicked_there[log.pair]], to] = True
    component = connected_components(reach, connection="strong")[1]
    loose = np.flatnonzero(component != component[0]) + 1
    if len(loose):
        raise UserError(
            f"mine.debias.method: too few clicked results were shown at several ranks to compare"
            f" rank {', '.join(map(str, loose.tolist()))} with rank 1 ({len(log.clicks_of_pair)} results); {fix}"
        )
