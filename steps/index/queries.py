"""The query vectors with which an approximate index is compared with the exact one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.tables import read_table

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class RecallQueries:
    """float32 `(n, teacher's width)`, and where they come from: `dev` or `alignment`."""

    vectors: np.ndarray
    source: str


def recall_queries(
    queries: pa.Table, dataset: str, embed: Path, encode: Encode, limit: int, seed: int
) -> RecallQueries:
    """A seeded sample of a data set's dev queries; of the queries in the alignment texts where it has no dev split."""
    texts = [row["text"] for row in queries.to_pylist() if row["dataset"] == dataset and row["split"] == "dev"]
    if texts:
        return RecallQueries(encode([texts[row] for row in _drawn(len(texts), limit, seed)]), "dev")
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    parts = np.array(read_table(embed, "alignment_texts")["part"].to_pylist())
    rows = np.flatnonzero(np.isin(parts, ["train_queries", "unlabelled_queries"]))
    rows = rows if len(rows) else np.arange(len(vectors))
    return RecallQueries(np.asarray(vectors[rows[_drawn(len(rows), limit, seed)]], dtype=np.float32), "alignment")


def _drawn(count: int, limit: int, seed: int) -> np.ndarray:
    """At most `limit` of `count` positions, in order."""
    return np.sort(np.random.default_rng(seed).choice(count, size=min(count, limit), replace=False))
