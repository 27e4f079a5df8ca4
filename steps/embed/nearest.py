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


def searched_rows(ingest: Path, most: int, seed: int) -> np.ndarray | None:
    """Rows, ascending, of the documents among which nearest ones are sought; None = all: no more than `most`, or 0.

    Of more a seeded sample, in which small data sets are whole and the others have equally many; a line on stderr says
    so.
    """
    count = len(CorpusRows(ingest, ["dataset"]))
    if not most or count <= most:
        return None
    print(
        f"embed: nearest documents are sought among {most:,} of {count:,}, drawn by seed, small data sets whole",
        file=sys.stderr,
    )
    own, random = rows_by_dataset(ingest), np.random.default_rng((seed, 4))
    taken = shares([len(rows) for rows in own], most)
    drawn = [random.choice(rows, size, replace=False) for rows, size in zip(own, taken, strict=True)]
    return np.sort(np.concatenate(drawn))


def shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many to take of each so that all together are `most`, and none has fewer than another that it has left."""
    taken, left = [0] * len(sizes), most
    for done, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        taken[place] = min(sizes[place], left // (len(sizes) - done))
        left -= taken[place]
    return taken


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
    found = np.zeros((len(vectors), count), dtype=np.int32)
    starts = range(0, len(vectors) if count else 0, _TEXTS)
    for start in progress(starts, len(starts), "nearest documents"):
        some = slice(start, start + _TEXTS)
        found[some] = nearest_rows(vectors[some], documents, count, rows, cosine=cosine)
    return found
