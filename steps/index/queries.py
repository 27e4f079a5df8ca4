"""The query vectors with which an approximate index is compared with the exact one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.core.tables import read_table

Encode = Callable[[list[str]], np.ndarray]

RECALL_QUERIES = 500  # dev where there are any, with which recall is measured


@dataclass(frozen=True)
class RecallQueries:
    """float32 `(n, teacher's dim)`, and where they come from: `dev` or `alignment`."""

    vectors: np.ndarray
    source: str


def recall_queries(
    queries: pa.Table, dataset: str, embed: Path, encode: Encode, limit: int, seed: int
) -> RecallQueries:
    """A seeded sample of a data set's dev queries; of alignment texts where it has no dev split.

    Of these its own queries, where there are none those of no data set, then texts of its documents, then any.
    """
    texts = [row["text"] for row in queries.to_pylist() if row["dataset"] == dataset and row["split"] == "dev"]
    if texts:
        return RecallQueries(encode([texts[row] for row in _sample(len(texts), limit, seed)]), "dev")
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    table = read_table(embed, "alignment_texts")
    are_queries = np.isin(np.array(table["part"].to_pylist()), ["train_queries", "unlabelled_queries"])
    source = np.array([name.partition("/")[0] for name in table["source_id"].to_pylist()])
    of_dataset, of_nobody = source == dataset, ~np.isin(source, pc.unique(queries["dataset"]).to_pylist())
    chosen = next(
        mask
        for mask in (
            are_queries & of_dataset,
            are_queries & of_nobody,
            of_dataset,
            np.ones(len(of_dataset), dtype=bool),
        )
        if mask.any()
    )
    rows = np.flatnonzero(chosen)
    return RecallQueries(np.asarray(vectors[rows[_sample(len(rows), limit, seed)]], dtype=np.float32), "alignment")


def _sample(count: int, limit: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(count, size=min(count, limit), replace=False))
