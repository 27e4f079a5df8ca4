"""What trainings on mined triplets share: which queries may train, which triplets are drawn, which ids are known."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.errors import UserError
from steps.core.leakage import EVALUATION_SPLITS, evaluation_keys
from steps.core.texts import fold
from steps.training.params import UNNAMED, TripletTraining

Column = tuple[list[str], np.ndarray]
"""A column's distinct values, and the place of each row's among them, int64 `(rows,)`."""


def refused_queries(queries: pa.Table) -> dict[str, str]:
    """Queries that may not train, by id: `not_a_train_query`, or `evaluation_query` for a text of dev or test."""
    splits = pa.array(sorted(EVALUATION_SPLITS))
    evaluation = evaluation_keys(queries.filter(pc.is_in(queries["split"], splits)).to_pylist())
    refused: dict[str, str] = {}
    for query_id, text, split in zip(
        *(queries[name].to_pylist() for name in ("query_id", "text", "split")), strict=True
    ):
        if split != "train":
            refused[query_id] = "not_a_train_query"
        elif fold(text) in evaluation:
            refused[query_id] = "evaluation_query"
    return refused


@dataclass(frozen=True)
class Turns:
    """In which epochs each of some items trains, `(n,)` each: in the share `chances` of them, by turns that begin at
    `luck`, in [0, 1). Within k epochs an item trains `k * chance` times, rounded up or down.
    """

    chances: np.ndarray
    luck: np.ndarray

    @property
    def every(self) -> bool:
        """Whether every item trains in every epoch."""
        return bool((self.chances >= 1).all())

    def rows(self, epoch: int) -> np.ndarray:
        """Ascending positions of the items that train in an epoch, the first of which is 0."""
        before, after = (np.ceil(count * self.chances - self.luck) for count in (epoch, epoch + 1))
        return np.flatnonzero(after > before)

    def used(self, epochs: int) -> int:
        """How many items train in any of the first epochs."""
        return int((np.ceil(epochs * self.chances - self.luck) > np.ceil(-self.luck)).sum())


def draw(weights: np.ndarray, limit: int, seed: int) -> tuple[np.ndarray, Turns]:
    """Ascending positions of the items that may train, `(m,)`, and their turns; an item counts by its weight `(n,)`.

    In an epoch each has the chance weight / largest weight. Where that is more than `limit` items (0 = none), as many
    are drawn of them evenly, and train in every epoch: a weight of 0.5 counts half as much as 1 either way.
    """
    if not (weights > 0).any():
        return np.zeros(0, dtype=np.int64), Turns(np.zeros(0), np.zeros(0))
    random = np.random.default_rng(seed)
    luck = random.random(len(weights))
    candidates = np.flatnonzero(luck * weights.max() < weights)
    if 0 < limit < len(candidates):
        rows = np.sort(random.choice(candidates, size=limit, replace=False))
        return rows, Turns(np.ones(limit), np.zeros(limit))
    rows = np.flatnonzero(weights > 0)
    chances = weights[rows] / weights.max()
    return rows, Turns(chances, np.where(chances < 1, luck[rows], 0.0))


def draw_triplets(
    triplets: pa.Table,
    queries: Column,
    sources: Column,
    refused: Mapping[str, str],
    excluded: tuple[str, np.ndarray],
    params: TripletTraining,
) -> tuple[np.ndarray, Turns, dict[str, int]]:
    """Rows of the triplets that may train, as `draw` has it, their turns, and how many were left out for which reason.

    A triplet's weight is multiplied by that of its source, which may be 0. `refused`: reasons by query id; `excluded`:
    one reason, and which triplets are left out for it, bool `(triplets,)`.
    """
    (query_ids, query), (names, source), (reason, is_excluded) = queries, sources, excluded
    reasons = ("source_weight_zero", "not_a_train_query", "evaluation_query", reason)
    codes = [reasons.index(refused[query_id]) if query_id in refused else -1 for query_id in query_ids]
    refusal = np.array(codes, dtype=np.int8)[query]
    factors = UNNAMED | params.source_weights
    factor = np.array([factors.get(name, 1.0) for name in names], dtype=np.float64)[source]
    why = np.select([factor == 0, refusal >= 0, is_excluded], [0, refusal, 3], -1)
    left_out = {reason: int((why == number).sum()) for number, reason in enumerate(reasons)}
    usable = np.flatnonzero(why == -1)
    weights = triplets["weight"].to_numpy()[usable].astype(np.float64) * factor[usable]
    positions, turns = draw(weights, params.max_triplets, params.seed)
    left_out["not_drawn"] = len(usable) - len(positions)
    return usable[positions], turns, left_out


def factorize(column: pa.ChunkedArray) -> Column:
    """The distinct values of a column in the order of their first rows, and the place of each row's among them."""
    distinct = column.unique()
    return distinct.to_pylist(), pc.index_in(column, value_set=distinct).to_numpy().astype(np.int64)


def check_ids(column: str, ids: Iterable[str], known_ids: Collection[str], where: Path) -> None:
    """UserError when a column of the triplets has an id that is not among `known_ids`, of the tables of `where`."""
    unknown = next((value for value in ids if value not in known_ids), None)
    if unknown is not None:
        raise UserError(
            f"triplets: {column} {unknown!r} is not in the tables of {where}; run ingest and mine again so that both"
            " come from the same data"
        )
