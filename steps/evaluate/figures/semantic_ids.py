"""Semantic IDs as a way to find documents: how many relevant ones lie under a query's first codes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq

from slimtower.serving.release import Release
from steps.core.judged import JudgedSet
from steps.evaluate.figures.base import EvaluatedTower, Figure, Part, RenderContext, cells
from steps.evaluate.formatting import Block, Cell, Table, percent
from steps.evaluate.systems import document_rows, document_vectors

_SAMPLE = 100_000  # documents that the centroids are found from


class SemanticIds(Figure):
    """`semantic_ids.<set>.<model>.recall.<n>, documents.<n>` of metrics.json, of a release that has semantic IDs.

    Share of the relevant documents, and of all documents, whose first n codes are the query's.
    """

    title = "Semantic IDs"
    part: ClassVar[Part] = "distance"
    position = 4
    analysis = True

    def measure(self, evaluated: EvaluatedTower) -> dict[str, dict[str, float]] | None:
        """By number of codes."""
        judged, release = evaluated.judged, evaluated.tower.release
        codes = read_codes(release, judged.dataset, evaluated.seed)
        if codes is None:
            return None
        relevant = [[doc for doc, grade in judged.qrels[query].items() if grade >= judged.relevant_from]
                    for query in judged.query_ids]  # fmt: skip
        rows = iter(document_rows(release, judged.dataset, [doc for docs in relevant for doc in docs]).tolist())
        relevant_rows = [[row for row in (next(rows) for _ in docs) if row >= 0] for docs in relevant]
        if not any(relevant_rows):
            return None
        agreement = measure_codes(codes, judged, relevant_rows, evaluated.vectors)
        return {name: {str(count): value for count, value in enumerate(row, 1)} for name, row in agreement.items()}

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        """A row a model."""
        yield (
            "Documents and queries have codes, coarse to fine. Shown is the share of the relevant documents whose first"
            " codes equal the query's; below it the same share of all documents."
        )
        counts = list(
            dict.fromkeys(
                count for row in value.values() for agreement in row.values() for count in agreement["recall"]
            )
        )
        yield Table(
            ["data set", "model", *(f"{count} code{'s' if count != '1' else ''}" for count in counts)],
            [
                [dataset, model]
                + [
                    Cell(percent(agreement["recall"][count]), f"{agreement['documents'][count] * 100:.2g}\u00a0%")
                    if count in agreement["recall"]
                    else "–"
                    for count in counts
                ]
                for dataset, model, agreement in cells(value)
            ],
        )


@dataclass(frozen=True)
class Codes:
    """Codes of a data set's documents, `(documents, levels)` in the order of the index, and centroids by level.

    `books`: float32 `(levels, codes, dim)`; a code that no document looked at has is NaN.
    """

    documents: np.ndarray
    books: np.ndarray


def read_codes(release: Release, dataset: str, seed: int) -> Codes | None:
    """Semantic IDs of a release, None without any.

    A release holds the documents' codes alone. A centroid is the mean of what the documents of its code leave over, of
    up to 100,000 drawn with the seed.
    """
    path: Path = release.folder / "index" / dataset / "semantic_ids.parquet"
    if not path.is_file():
        return None
    table = pq.read_table(path)
    levels = [name for name in table.column_names if name.startswith("level_")]
    codes = np.stack([table[name].to_numpy() for name in levels], axis=1).astype(np.int64)
    rows = np.sort(np.random.default_rng(seed).permutation(len(codes))[:_SAMPLE])
    return Codes(codes, centroids(document_vectors(release, dataset, rows), codes[rows], int(codes.max()) + 1))


def centroids(vectors: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
    """Mean residual of each code and level, `(levels, count, dim)`, of vectors `(n, dim)` with codes `(n, levels)`."""
    residual = vectors.astype(np.float64)
    books = np.full((codes.shape[1], count, vectors.shape[1]), np.nan)
    for level, level_codes in enumerate(codes.T):
        totals, members = np.zeros((count, vectors.shape[1])), np.bincount(level_codes, minlength=count)
        np.add.at(totals, level_codes, residual)
        books[level, members > 0] = totals[members > 0] / members[members > 0, None]
        residual = residual - books[level][level_codes]
    return books.astype(np.float32)


def query_codes(vectors: np.ndarray, books: np.ndarray) -> np.ndarray:
    """Codes of queries `(queries, dim)`, int64 `(queries, levels)`: the nearest centroid to what is left."""
    residual, codes = vectors.astype(np.float32), []
    for book in books:
        used = np.flatnonzero(~np.isnan(book[:, 0]))
        entries = book[used]
        distances = (entries**2).sum(axis=1) - 2 * residual @ entries.T
        nearest = used[distances.argmin(axis=1)]
        residual = residual - book[nearest]
        codes.append(nearest)
    return np.stack(codes, axis=1)


def prefix_recall(
    queries: np.ndarray, documents: np.ndarray, relevant: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Mean over queries, for the first one, two and more codes: share of its relevant documents that begin with them,
    and share of all documents that do.

    Args: codes `(queries, levels)` and `(documents, levels)`; rows of the relevant documents of each query.
    """
    recalls, shares = [], []
    for depth in range(1, queries.shape[1] + 1):
        _, groups = np.unique(np.concatenate([queries[:, :depth], documents[:, :depth]]), axis=0, return_inverse=True)
        query_groups, doc_groups = np.split(groups.ravel(), [len(queries)])
        sizes = np.bincount(doc_groups, minlength=groups.max() + 1)
        pairs = zip(query_groups, relevant, strict=True)
        recalls.append(float(np.mean([(doc_groups[list(docs)] == group).mean() for group, docs in pairs])))
        shares.append(float(sizes[query_groups].mean() / len(documents)))
    return recalls, shares


def measure_codes(
    codes: Codes, judged: JudgedSet, rows: Sequence[Sequence[int]], vectors: np.ndarray
) -> dict[str, list[float]]:
    """`recall` and `documents` by number of codes, of a judged set's embeddings `(queries, dim)`.

    `rows`: of the relevant documents of each query; a query without any in the index does not count.
    """
    with_relevant = [query for query in range(len(judged.query_ids)) if rows[query]]
    recall, share = prefix_recall(
        query_codes(vectors[with_relevant], codes.books), codes.documents, [rows[query] for query in with_relevant]
    )
    return {"recall": recall, "documents": share}
