"""What is scored: each text's nearest documents, and behind them known positives that are not among these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steps.retrieval.score_shards import Compute, ScoreShards


@dataclass(frozen=True)
class Lists:
    """The documents of each text; rows of documents throughout.

    `nearest` `(texts, k)`; `missed` `(n, 2)`: the position of a text and a positive of it, ascending.
    """

    texts: Sequence[str]
    nearest: np.ndarray
    missed: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """All documents, once, ascending."""
        return np.unique(np.concatenate([self.nearest.reshape(-1), self.missed[:, 1]]))

    def __len__(self) -> int:
        return int(self.nearest.size + len(self.missed))

    def pairs(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the texts from `start` on: positions of texts and rows of documents, list by list, `(pairs,)` each."""
        near, missed, positions = self._shard(start, stop)
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([near.reshape(-1), missed[:, 1]])[order]

    def get_or_compute(
        self, start: int, stop: int, rows: np.ndarray, shards: ScoreShards, compute: Compute
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `compute` makes of these texts' nearest documents, `(texts, k, ...)`, and of `pairs`, `(pairs, ...)`.

        It is given positions of documents in `rows`.
        """
        near, missed, positions = self._shard(start, stop)
        first = shards.get_or_compute(compute, list(self.texts[start:stop]), np.searchsorted(rows, near))
        values = first.reshape(near.size, *first.shape[2:])
        if not len(missed):
            return first, values
        texts = [self.texts[position] for position in missed[:, 0].tolist()]
        more = shards.get_or_compute(compute, texts, np.searchsorted(rows, missed[:, 1:]))[:, 0]
        return first, np.concatenate([values, more])[np.argsort(positions, kind="stable")]

    def _shard(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nearest documents, positives, and the positions of the texts of both, one after the other."""
        near = self.nearest[start:stop]
        missed = self.missed[slice(*np.searchsorted(self.missed[:, 0], [start, stop]))]
        repeated = np.repeat(np.arange(start, start + len(near)), near.shape[1])
        return near, missed, np.concatenate([repeated, missed[:, 0]])


def lists_of(
    texts: Sequence[str],
    nearest: np.ndarray,
    positives: Mapping[int, np.ndarray],
    chosen: np.ndarray,
    limit: int,
    seed: int,
) -> Lists:
    """Lists of the texts with these nearest documents, and at most `limit` positives, drawn by seed.

    `chosen`: rows of the texts, ascending, which are the keys of `positives`.
    """
    missed = [np.zeros((0, 2), dtype=np.int64)]
    for position in np.flatnonzero(np.isin(chosen, list(positives))).tolist():
        row = int(chosen[position])
        extra = np.setdiff1d(positives[row], nearest[position])
        if len(extra) > limit:
            extra = np.sort(np.random.default_rng((seed, 7, row)).choice(extra, limit, replace=False))
        missed.append(np.stack([np.full(len(extra), position), extra], axis=1).astype(np.int64))
    return Lists(texts, nearest, np.concatenate(missed))
