"""The teacher's vectors: whether they tell texts apart, and which documents are nearest to texts."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slimtower.common.errors import UserError
from steps.core.corpus import CorpusRows, rows_by_dataset
from steps.core.progress import progress
from steps.core.texts import fold
from steps.core.vector_store import Texts
from steps.encoders.cut_texts import sample_rows
from steps.retrieval.exact_search import best_documents

NEIGHBOUR_DOCUMENTS = 500_000  # among which nearest ones are sought; time grows with it, memory does not
_SEARCHED_AT_ONCE = 16_384  # texts; a corpus that is read in blocks is read anew for each
_COMPARED = 1000  # texts
_MIN_TEXTS = 10  # different ones; fewer may well be alike
_MIN_DISTANCE = 1e-4  # mean cosine distance; of models that are not made for search it is still above 1e-3
_EQUAL = 2e-6  # cosine distance, above what float16 rounds
_TWINS = 0.5  # share of different texts whose vector another text has too


def searched_rows(ingest: Path, limit: int, seed: int) -> np.ndarray | None:
    """Rows, ascending, of the documents among which nearest ones are sought; None = all.

    Of more than `limit` a seeded sample with small data sets whole; a line on stderr says so.
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

    `rows`: which of the documents `(n, dim)` are searched, None = all. If they are too few, a line on stderr says so.
    """
    searched = len(documents) if rows is None else len(rows)
    if count > searched:
        print(f"embed: neighbours is {count}, but there are {searched} documents: takes them all", file=sys.stderr)
        count = searched
    nearest = np.zeros((len(vectors), count), dtype=np.int32)
    starts = range(0, len(vectors) if count else 0, _SEARCHED_AT_ONCE)
    for start in progress(starts, len(starts), "nearest documents"):
        batch = slice(start, start + _SEARCHED_AT_ONCE)
        nearest[batch] = best_documents(vectors[batch], documents, count, rows, cosine=cosine)[1]
    return nearest


def check_sample_spread(vectors: Path, texts: Texts, kind: str, teacher: str, seed: int) -> None:
    """`check_spread` of a sample of the vectors in a file."""
    rows = sample_rows(len(texts), seed, _COMPARED)
    sampled = set(rows.tolist())
    sampled_texts = [text for row, text in enumerate(texts) if row in sampled]
    check_spread(np.load(vectors, mmap_mode="r")[rows], sampled_texts, kind, teacher)


def check_spread(vectors: np.ndarray, texts: Sequence[str], kind: str, teacher: str) -> None:
    """UserError if vectors `(n, dim)` of different texts are all alike, or most of them another text's."""
    different = list({fold(text): row for row, text in enumerate(texts)}.values())
    if len(different) < _MIN_TEXTS:
        return
    sample = np.asarray(vectors[different], dtype=np.float32)
    sample[~sample.any(axis=1)] = 1.0  # of no length, all alike
    sample /= np.maximum(np.linalg.norm(sample, axis=1, keepdims=True), 1e-12)
    cosines = sample @ sample.T
    off_diagonal = ~np.eye(len(sample), dtype=bool)
    distance = float(1 - cosines[off_diagonal].mean())
    twins = float((np.where(off_diagonal, cosines, -1).max(axis=1) > 1 - _EQUAL).mean())
    if distance >= _MIN_DISTANCE and twins <= _TWINS:
        return
    why = (
        f"lie at a mean cosine of {1 - distance:.6f}"
        if distance < _MIN_DISTANCE
        else f"are one another's for {twins:.0%} of the texts"
    )
    raise UserError(
        f"embed: the vectors of {len(sample)} different {kind} {why}, so they say nothing: the teacher {teacher} cannot"
        " tell texts apart; look at its weights and its vocabulary, and at max_document_length if all begin alike"
    )
