"""Semantic IDs as a way to find documents: how many relevant ones lie under a query's first codes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq

from slimtower.serving.release import Release
from steps.evaluate.figures.base import EvaluatedTower, Figure, Part, RenderContext, model_table
from steps.evaluate.formatting import Block, Cell, percent
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
        rows = document_rows(release, judged.dataset, [doc for docs in relevant for doc in docs])
        ends = np.cumsum([len(docs) for docs in relevant])
        indexed = {at: part[part >= 0] for at, part in enumerate(np.split(rows, ends[:-1])) if (part >= 0).any()}
        if not indexed:
            return None
        documents, books = codes
        queries = query_codes(evaluated.vectors[list(indexed)], books)
        shares = prefix_recall(queries, documents, [rows.tolist() for rows in indexed.values()])
        return {
            name: {str(count): value for count, value in enumerate(row, 1)}
            for name, row in zip(("recall", "documents"), shares, strict=True)
        }

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "Documents and queries have codes, coarse to fine. Shown is the share of the relevant documents whose first"
            " codes equal the query's; below it the same share of all documents."
        )
        counts = list(
            dict.fromkeys(count for row in value.values() for share in row.values() for count in share["recall"])
        )

        def shares(share: Mapping[str, Any]) -> list[str | Cell]:
            recall, documents = share["recall"], share["documents"]
            return [
                Cell(percent(recall[count]), f"{documents[count] * 100:.2g}\u00a0%") if count in recall else "–"
                for count in counts
            ]

        yield model_table(["model", *(f"{count} code{'s' * (count != '1')}" for count in counts)], value, shares)


def read_codes(release: Release, dataset: str, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Semantic IDs of a release, None without any: codes of documents, `(documents, levels)`, and centroids.

    A centroid is the mean of what the documents of its code leave over, of up to 100,000 drawn with the seed.
    """
    path: Path = release.folder / "index" / dataset / "semantic_ids.parquet"
    if not path.is_file():
        return None
    table = pq.read_table(path)
    levels = [name for name in table.column_names if name.startswith("level_")]
    codes = np.stack([table[name].to_numpy() for name in levels], axis=1).astype(np.int64)
    rows = np.sort(np.random.default_rng(seed).permutation(len(codes))[:_SAMPLE])
    return codes, centroids(document_vectors(release, dataset, rows), codes[rows], int(codes.max()) + 1)


def centroids(vectors: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
    """Mean residual `(levels, count, dim)` of vectors `(n, dim)` by codes `(n, levels)`; NaN for an unused code."""
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
