"""The documents nearest to each alignment text, by the similarity of the index's teacher."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steps.core.corpus import CorpusRows, rows_by_dataset
from steps.core.progress import progress
from steps.retrieval.exact_search import nearest_rows

NEIGHBOUR_DOCUMENTS = 500_000  # among which nearest ones are sought; time grows with it, memory does not
_TEXTS = 16_384  # searched at once; a corpus that is read in blocks is read anew for each


def searched_rows(ingest: Path, limit: int, seed: int) -> np.ndarray | None:
    """Rows, ascending, of the documents among which nearest ones are sought; None = all: no more than `limit`, or 0.

    Of more a seeded sample, in which small data sets are whole and the others have equally many; a line on stderr says
    so.
    """
    count = len(CorpusRows(ingest, ["dataset"]))
    if not limit or count <= limit:
        return None
    print(
        f"embed: nearest documents are sought among {limit:,} of {count:,}, drawn by seed, small data sets whole",
        file=sys.stderr,
    )
    rows_of_datasets, random = rows_by_dataset(ingest), np.random.default_rng((seed, 4))
    sizes = shares([len(rows) for rows in rows_of_datasets], limit)
    samples = [random.choice(rows, size, replace=False) for rows, size in zip(rows_of_datasets, sizes, strict=True)]
    return np.sort(np.concatenate(samples))


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """Split `total` over data sets of these sizes as evenly as the sizes allow."""
    counts, remaining = [0] * len(sizes), total
    for done, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        counts[index] = min(sizes[index], remaining // (len(sizes) - done))
        remaining -= counts[index]
    return counts


def nearest_documents(
    vectors: np.ndarray, documents: np.ndarray, count: int, rows: np.ndarray | None = None, *, cosine: bool
) -> np.ndarray:
    """Rows of the `count` documents most like each of the `(texts, dim)` vectors, best first: int32 `(texts, count)`.

    Documents `(n, dim)`, which may be a memory map; `rows`: those that are searched, None = all. Where there are fewer
    than `count`, all are taken and a line on stderr says so.
    """
    searched = len(documents) if rows is None else len(rows)
    if count > searched:
        print(f"embed: neighbours is {count}, but there are {searched} documents: takes them all", file=sys.stderr)
        count = searched
    nearest = np.zeros((len(vectors), count), dtype=np.int32)
    starts = range(0, len(vectors) if count else 0, _TEXTS)
    for start in progress(starts, len(starts), "nearest documents"):
        batch = slice(start, start + _TEXTS)
        nearest[batch] = nearest_rows(vectors[batch], documents, count, rows, cosine=cosine)
    return nearest
