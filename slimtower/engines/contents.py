"""What a release puts into a collection: its documents, their digest, and the queries that it is judged with."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slimtower.common.files import read_columns, sha256_text
from slimtower.engines.engine import Rows
from slimtower.serving.checks import TITLES, embed_each
from slimtower.serving.index_files import file_digests, shards_of
from slimtower.serving.release import Release

K = 10
RECALL_QUERIES = 1000  # dev queries of a data set that settings are chosen on, evenly spaced
SAMPLE = 100  # documents whose stored vectors are compared with the release's
_TIES = 40  # hits behind the tenth that are looked at for equal scores
_EQUAL = 1e-5  # of a score of the exact index, relative to its size


def contents_digest(release: Release, dataset: str) -> str:
    """Sha256 of what fills a data set's collection: ids, titles, exact vectors, dimensions and metric."""
    manifest = release.manifest
    names = [*file_digests("flat", release.entries[dataset]["indexes"]["flat"]), "doc_ids.parquet", TITLES]
    files = {name: manifest.index_files[f"{dataset}/{name}"] for name in names}
    return sha256_text(json.dumps([files, manifest.dim, manifest.metric], sort_keys=True))


def rows_from(release: Release, dataset: str, first: int, batch: int) -> Iterator[Rows]:
    """The documents from row `first` on, `batch` at a time; vectors come from the exact index as they are asked for."""
    ids, titles = release.documents(dataset)
    begin = 0
    for shard in shards_of(release.index(dataset, "flat")):
        for at in range(max(first - begin, 0), shard.ntotal, batch):
            vectors = shard.reconstruct_n(at, min(batch, shard.ntotal - at))
            rows = slice(begin + at, begin + at + len(vectors))
            yield Rows(rows.start, ids[rows], titles[rows], vectors)
        begin += shard.ntotal


def sample_vectors(release: Release, dataset: str, count: int) -> dict[str, np.ndarray]:
    """Id -> vector of `count` documents, evenly spaced."""
    total = release.manifest.datasets[dataset].vectors
    vectors: dict[str, np.ndarray] = {}
    for row in np.unique(np.linspace(0, total - 1, min(count, total)).astype(int)).tolist():
        rows = next(rows_from(release, dataset, row, 1))
        vectors[rows.ids[0]] = rows.vectors[0]
    return vectors


class QueryBatch(NamedTuple):
    """Queries' embeddings `(n, dim)`, where they come from, `exact`: ids of each query's exact best ten, and
    `index_recall`: the share of these that the release's own index finds."""

    vectors: np.ndarray
    source: str
    exact: list[frozenset[str]]
    index_recall: float


def load_queries(release: Release, dataset: str, ingest: Path, limit: int) -> QueryBatch:
    """A data set's dev queries, evenly spaced; other queries of it, or the release's probes, where it has none."""
    texts, source = _texts(release, dataset, ingest)
    texts = [texts[row] for row in np.unique(np.linspace(0, len(texts) - 1, min(limit, len(texts))).astype(int))]
    vectors = embed_each(release.encode, texts)
    scores, ids = release.search(dataset, vectors, K + _TIES, "flat")
    exact = []
    for line, docs in zip(scores, ids, strict=True):
        last = line[min(K, len(docs)) - 1]
        exact.append(frozenset(docs[: int((line[: len(docs)] >= last - _EQUAL * abs(last)).sum())]))
    return QueryBatch(vectors, source, exact, recall(release.search(dataset, vectors, K)[1], exact))


def recall(results: Sequence[Sequence[str]], exact: Sequence[frozenset[str]]) -> float:
    """Mean share of the exact ten best among the results; documents that score as the tenth count alike."""
    shares = [len(set(ids) & best) / min(K, len(best)) for ids, best in zip(results, exact, strict=True)]
    return float(np.mean(shares))


def _texts(release: Release, dataset: str, ingest: Path) -> tuple[list[str], str]:
    queries = ingest / "queries.parquet"
    if queries.is_file():
        table = read_columns(queries, "dataset", "split", "text")
        rows = [row for row in table.to_pylist() if row["dataset"] == dataset]
        for splits, source in (({"dev"}, "dev queries"), ({"train", "test"}, "queries without a dev split")):
            if texts := [row["text"] for row in rows if row["split"] in splits]:
                return texts, source
    return [probe.text for probe in release.manifest.probes], "probes of the release, as there are no dev queries"
