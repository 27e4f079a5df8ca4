"""What trainings on mined triplets share: which queries may train, which triplets are drawn, which ids are known."""

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.core.errors import UserError
from steps.core.leakage import EVALUATION_SPLITS, evaluation_keys
from steps.core.texts import fold


def refused_queries(queries: pa.Table) -> dict[str, str]:
    """Why a query of the table `queries` may not train, for each id that may not.

    `not_a_train_query`, or `evaluation_query` for one of the train split that reads, folded, like one of dev or test.
    """
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


def mostly_unused(drawn: int, not_drawn: int, limit: int) -> str | None:
    """Why more than half of the usable triplets do not train, else None; `limit` as they were drawn by."""
    usable = drawn + not_drawn
    if 2 * not_drawn <= usable:
        return None
    numbers = f"{drawn:,} of {usable:,} usable triplets train"
    if drawn == limit:
        return f"{numbers} (max_triplets); raise it where there is time for more, 0 takes all"
    return f"{numbers} (each with a chance of its weight to the largest one); see mine's weights and source_weights"


def draw(weights: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """Ascending positions of at most `limit` items, each kept with a chance in proportion to its weight `(n,)`.

    First every item is kept with chance weight / largest weight, then `limit` of the kept are drawn evenly: a weight
    of 0.5 counts half as much as 1 whether or not the limit is reached.
    """
    if not (weights > 0).any():
        return np.zeros(0, dtype=np.int64)
    random = np.random.default_rng(seed)
    kept = np.flatnonzero(random.random(len(weights)) * weights.max() < weights)
    if len(kept) > limit:
        kept = random.choice(kept, size=limit, replace=False)
    return np.sort(kept)


def check_ids(column: str, ids: Iterable[str], known: Collection[str], where: Path) -> None:
    """UserError when a column of the triplets has an id that is not known: the tables of `where` do not hold it."""
    unknown = next((each for each in ids if each not in known), None)
    if unknown is not None:
        raise UserError(
            f"triplets: {column} {unknown!r} is not in the tables of {where}; run ingest and mine again so that both"
            " come from the same data"
        )
