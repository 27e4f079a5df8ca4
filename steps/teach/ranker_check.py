"""A ranker's word on hard negatives: what a search finds and nobody called relevant may be it all the same."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.special import log_expit

from slimtower.common.errors import UserError
from slimtower.common.files import staged_file
from steps.core.progress import progress
from steps.encoders.precision import Precision
from steps.retrieval.rankers import Pair, load_ranker, pair_scores
from steps.teach.kinds.contrastive import RoundParams
from steps.teach.training_triplets import TextTriplet
from steps.training.checkpoint_files import load_checkpoint_or_none

BLOCK = 8192  # triplets whose negatives are found before they are kept: texts of all that these may have are in memory
_PAIRS = 32  # read by the ranker at once
Texts = Callable[[np.ndarray], Iterable[str]]
"""Texts of ascending rows of the corpus."""


def ranker_of(rankers: Path, rule: RoundParams) -> Path | None:
    """Folder of the ranker that checks the rounds' negatives, None without one; UserError where it is not there."""
    if not rule.more or not rule.ranker:
        return None
    tower = rankers / rule.ranker / "tower"
    if not tower.is_dir():
        raise UserError(
            f"{tower}: not found, and rounds.ranker of the teacher names it; run the stage `rank` first"
            f' (rank.rankers: [{rule.ranker}]), or set rounds.ranker: ""'
        )
    return tower


def is_far(scores: np.ndarray, positives: np.ndarray, margin: float) -> np.ndarray:
    """Whether `sigmoid(score) <= (1 - margin) * sigmoid(positive)`, for logits `(n,)` each: bool `(n,)`.

    NV-Retriever's TopK-PercPos (Moreira et al. 2024) on probabilities; by logarithms, so that no score is too small.
    """
    far: np.ndarray = log_expit(np.float64(scores)) <= log_expit(np.float64(positives)) + np.log1p(-margin)
    return far


def checked_negatives(
    fits: Iterable[np.ndarray],
    triplets: Sequence[TextTriplet],
    texts: Texts,
    ranker: Path,
    margin: float,
    precision: Precision,
    seed: tuple[int, int],
    scratch: Path,
) -> np.ndarray:
    """A negative for each triplet that the ranker calls far from its positive, -1 where it has none: int64 `(n,)`.

    `fits` has rows of the corpus for each triplet, when it is asked for it. They are tried in an order drawn by
    `seed`, so every one that passes is as likely. Blocks of triplets are kept in `scratch`, for a killed run.
    """
    remaining = iter(fits)
    model = load_ranker(ranker)

    def scores(pairs: list[Pair]) -> np.ndarray:
        logits = pair_scores(model, pairs, precision=precision, batch_size=_PAIRS)
        if not np.isfinite(logits).all():
            raise UserError(
                f"teach: the ranker gives a query and a document the score {logits[~np.isfinite(logits)][0]}; set the"
                ' teacher\'s precision: fp32, or rounds.ranker: ""'
            )
        return logits

    starts = range(0, len(triplets), BLOCK)
    parts = [np.zeros(0, dtype=np.int64)]
    for start in progress(starts, len(starts), "ranker checks negatives"):
        block, path = list(islice(remaining, BLOCK)), scratch / f"checked-{start}.npy"
        if (rows := load_checkpoint_or_none(path, np.load, "teach")) is None:
            rows = _first_far(block, triplets[start : start + BLOCK], texts, scores, margin, (*seed, start))
            with staged_file(path) as staging, staging.open("wb") as file:
                np.save(file, rows)
        parts.append(rows)
    return np.concatenate(parts)


def _first_far(
    fits: list[np.ndarray],
    triplets: Sequence[TextTriplet],
    texts: Texts,
    scores: Callable[[list[Pair]], np.ndarray],
    margin: float,
    seed: tuple[int, ...],
) -> np.ndarray:
    """The first row of each triplet's, in a drawn order, that is far from its positive; -1 without one."""
    random = np.random.default_rng(seed)
    orders = [random.permutation(fit).tolist() for fit in fits]
    rows = np.unique(np.concatenate([*fits, np.zeros(0, dtype=np.int64)]).astype(np.int64))
    text = dict(zip(rows.tolist(), texts(rows), strict=True))
    negatives = np.full(len(fits), -1, dtype=np.int64)
    pending = [index for index, order in enumerate(orders) if order]
    positives = np.full(len(fits), np.nan)
    positives[pending] = scores([(triplets[index].query, triplets[index].positive) for index in pending])
    while pending:
        tried = [orders[index].pop(0) for index in pending]
        pairs = [(triplets[index].query, text[row]) for index, row in zip(pending, tried, strict=True)]
        far = is_far(scores(pairs), positives[pending], margin)
        negatives[np.array(pending)[far]] = np.array(tried)[far]
        pending = [index for index, done in zip(pending, far.tolist(), strict=True) if not done and orders[index]]
    return negatives
