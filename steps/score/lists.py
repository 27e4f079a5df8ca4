"""What is scored: each text's nearest documents, and behind them known positives that are not among these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steps.retrieval.score_shards import Compute, ScoreShards


@dataclass(frozen=True)
class Lists:
    """The documents of each text; rows of documents throughout.

    `nearest` `(texts, k)`; `missed` `(n, 2)`: the place of a text and a positive of it, ascending.
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
        """Of the texts from `start` on: places of texts and rows of documents, list by list, `(pairs,)` each."""
        near, own, places = self._shard(start, stop)
        order = np.argsort(places, kind="stable")
        return places[order], np.concatenate([near.reshape(-1), own[:, 1]])[order]

    def made(
        self, start: int, stop: int, rows: np.ndarray, shards: ScoreShards, compute: Compute
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `compute` makes of these texts' nearest documents, `(texts, k, ...)`, and of `pairs`, `(pairs, ...)`.

        It is given positions of documents in `rows`.
        """
        near, own, places = self._shard(start, stop)
        first = shards.made(compute, list(self.texts[start:stop]), np.searchsorted(rows, near))
        if not len(own):
            return first, first.reshape(near.size, *first.shape[2:])
        asked = [self.texts[place] for place in own[:, 0].tolist()]
        more = shards.made(compute, asked, np.searchsorted(rows, own[:, 1:]))[:, 0]
        whole = np.concatenate([first.reshape(near.size, *first.shape[2:]), more])
        return first, whole[np.argsort(places, kind="stable")]

    def _shard(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nearest documents, positives, and the places of the texts of both, one after the other."""
        near = self.nearest[start:stop]
        first, last = np.searchsorted(self.missed[:, 0], [start, stop])
        own = self.missed[first:last]
        return near, own, np.concatenate([np.repeat(np.arange(start, start + len(near)), near.shape[1]), own[:, 0]])


def lists_of(
    texts: Sequence[str],
    nearest: np.ndarray,
    known: Mapping[int, np.ndarray],
    chosen: np.ndarray,
    most: int,
    seed: int,
) -> Lists:
    """Lists of the texts with these nearest documents, and at most `most` positives, drawn by seed.

    `chosen`: rows of the texts, ascending, by which `known` has their positives.
    """
    found = [np.zeros((0, 2), dtype=np.int64)]
    for place in np.flatnonzero(np.isin(chosen, list(known))).tolist():
        row = int(chosen[place])
        own = np.setdiff1d(known[row], nearest[place])
        if len(own) > most:
            own = np.sort(np.random.default_rng((seed, 7, row)).choice(own, most, replace=False))
        found.append(np.stack([np.full(len(own), place), own], axis=1).astype(np.int64))
    return Lists(texts, nearest, np.concatenate(found))
