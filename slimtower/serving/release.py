"""The release unit: a query encoder and the index it may query, never apart, and the loader that proves they match."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import faiss
import numpy as np
import pyarrow.parquet as pq

from slimtower.common.errors import UserError, exhausted, line
from slimtower.common.files import folder_bytes
from slimtower.lexical.fusion import AnyFusion, fuse, pooled
from slimtower.serving.checks import (
    check_files,
    check_index,
    check_lexical,
    check_probes,
    check_rows,
    check_settings,
    embed_each,
)
from slimtower.serving.index_files import file_digests, open_index
from slimtower.serving.manifest import REMEDY, Manifest, read_manifest
from slimtower.serving.query_encoder import check_text, check_texts, load_query_encoder

if TYPE_CHECKING:
    from slimtower.lexical.bm25 import Bm25


class Hit(NamedTuple):
    """A document that was found; its score is the inner product with the query, or the fused score."""

    id: str
    score: float
    title: str


class Documents(NamedTuple):
    """Ids and titles of a data set's documents, in the order of the index's rows."""

    ids: list[str]
    titles: list[str]


class Release:
    """A query encoder with the indexes that it may query, one or two a data set. Open one with `load_release`.

    A release may carry a BM25 index of a data set: its answers to texts are then the fused hits of both searches.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 1) -> None:
        self.folder, self.manifest, self.threads = folder, manifest, threads
        self.encoder = load_query_encoder(folder / "serving", threads)
        self.entries = check_index(folder, manifest)
        check_lexical(folder, manifest)
        self.datasets = sorted(manifest.datasets)
        self._indexes: dict[tuple[str, str], faiss.Index] = {}
        self._documents: dict[str, Documents] = {}
        self._lexical: dict[str, Bm25] = {}

    @property
    def model_bytes(self) -> int:
        """Size of the encoder that serves, on disk."""
        return folder_bytes(self.folder / "serving")

    def kinds(self, dataset: str) -> list[str]:
        """The indexes of a data set, of `ann` and `flat`: the one that serves comes first."""
        if dataset not in self.entries:
            raise UserError(
                f"release {self.folder.name}: holds no index of {dataset!r}; it has {', '.join(self.datasets)}"
            )
        return sorted(self.entries[dataset]["indexes"])

    def index_bytes(self, dataset: str, kind: str) -> int:
        """Size of one of the indexes that `kinds` names, on disk."""
        folder, entry = self.folder / "index" / dataset, self.entries[dataset]["indexes"][kind]
        return sum((folder / file).stat().st_size for file in file_digests(kind, entry))

    def encode(self, queries: str | Iterable[str]) -> np.ndarray:
        """Embed queries as they are served: one str as float32 `(dim,)`, several as `(len(queries), dim)`.

        TypeError for anything but str, ValueError for half a surrogate pair.
        """
        if isinstance(queries, str):
            vector: np.ndarray = self.encoder.encode([check_text(queries, "queries")])[0]
            return vector
        return self.encoder.encode(check_texts(queries, "queries"))

    def search(
        self, dataset: str, vectors: np.ndarray, k: int, kind: str = "ann", threads: int = 0
    ) -> tuple[np.ndarray, list[list[str]]]:
        """The best k documents of each vector `(n, dim)`, or of one `(dim,)`: scores `(n, k)` and document ids.

        Where a data set has no approximate index, `ann` is the exact one. A search that finds fewer than k returns
        fewer ids, and scores that mean nothing behind them. `threads`: 0 = those of the release. UserError for an
        unknown data set or kind.
        """
        scores, rows = self._rows(dataset, vectors, k, kind, threads)
        ids = self.documents(dataset).ids
        return scores, [[ids[row] for row in line if row >= 0] for line in rows.tolist()]

    def search_text(
        self, dataset: str, texts: Sequence[str], k: int, kind: str = "ann"
    ) -> tuple[list[np.ndarray], list[list[str]]]:
        """Scores, float32, and ids of the best k documents of each text, as the release serves them: see `answers`."""
        texts = check_texts(texts, "texts")
        answers = self.answers(dataset, texts, self.encode(texts), k, kind)
        return [np.array([hit.score for hit in hits], dtype=np.float32) for hits in answers], [
            [hit.id for hit in hits] for hits in answers
        ]

    def query(self, text: str, k: int = 10, dataset: str = "") -> list[Hit]:
        """The best k documents of one query; `dataset` empty is the release's first. TypeError unless it is a str."""
        return self.query_all([check_text(text, "text")], k, dataset)[0]

    def query_all(self, texts: Sequence[str], k: int = 10, dataset: str = "") -> list[list[Hit]]:
        """The best k documents of each query; UserError for k below 1 or an unknown data set, TypeError for one str."""
        if k < 1:
            raise UserError(f"k is {k}; ask for at least 1 hit")
        texts = check_texts(texts, "texts")
        return self.answers(dataset or self.datasets[0], texts, self.encode(texts), k)

    def answers(
        self, dataset: str, texts: Sequence[str], vectors: np.ndarray, k: int, kind: str = "ann"
    ) -> list[list[Hit]]:
        """The best k documents of each text, whose embeddings are `vectors` `(texts, dim)`.

        Where the release carries a BM25 index of the data set, the hits of both searches fused, of which there are no
        more than the `depth` of the fusion from each; else those of `hits`. TypeError for one str in the place of
        several.
        """
        if isinstance(texts, str):
            raise TypeError("texts is of type str; give a list of str")
        fusion = self.fusion(dataset)
        if fusion is None:
            return self.hits(dataset, vectors, k, kind)
        ids, titles = self.documents(dataset)
        dense = zip(*self._rows(dataset, vectors, fusion.depth, kind), strict=True)
        lexical = zip(*self.lexical(dataset).rows(texts, fusion.depth), strict=True)
        answers = []
        for both in zip(dense, lexical, strict=True):
            lists = [(scores, [row for row in rows.tolist() if row >= 0]) for scores, rows in both]
            row_of = {ids[row]: row for _, rows in lists for row in rows}
            pool = pooled([(scores[: len(rows)], [ids[row] for row in rows]) for scores, rows in lists], fusion.depth)
            scores, doc_ids = fuse(pool, fusion, k)
            answers.append(
                [Hit(doc, score, titles[row_of[doc]]) for doc, score in zip(doc_ids, scores.tolist(), strict=True)]
            )
        return answers

    def fusion(self, dataset: str) -> AnyFusion | None:
        """How dense and BM25 hits of a data set are fused; None where the release carries no BM25 index of it."""
        return self.manifest.lexical.fusions.get(dataset) if self.manifest.lexical else None

    def lexical(self, dataset: str) -> "Bm25":
        """The BM25 index of a data set that has a fusion, mapped from disk; opened once."""
        lexical = self.manifest.lexical
        if dataset not in self._lexical and lexical:
            from slimtower.lexical.bm25 import Bm25  # a release without one is served without its package

            folder, ids = self.folder / "lexical" / dataset, self.documents(dataset).ids
            bm25 = Bm25.open(folder, ids, lexical.tokenizer)
            if bm25.documents != len(ids):
                raise UserError(f"{folder}: of {bm25.documents} documents, the index has {len(ids)}; {REMEDY}")
            self._lexical[dataset] = bm25
        return self._lexical[dataset]

    def hits(self, dataset: str, vectors: np.ndarray, k: int, kind: str = "ann") -> list[list[Hit]]:
        """The best k documents of each vector `(n, dim)`, or of one, as `search` finds them, with their titles."""
        scores, rows = self._rows(dataset, vectors, k, kind)
        ids, titles = self.documents(dataset)
        return [
            [Hit(ids[row], score, titles[row]) for row, score in zip(*line, strict=True) if row >= 0]
            for line in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def documents(self, dataset: str) -> Documents:
        if dataset not in self._documents:
            self.kinds(dataset)
            folder = self.folder / "index" / dataset
            ids, titles = pq.read_table(folder / "doc_ids.parquet"), pq.read_table(folder / "titles.parquet")
            check_rows(folder, self.manifest.datasets[dataset].vectors, ids["doc_id"], titles["doc_id"])
            self._documents[dataset] = Documents(ids["doc_id"].to_pylist(), titles["title"].to_pylist())
        return self._documents[dataset]

    def index(self, dataset: str, kind: str = "ann") -> faiss.Index:
        """The faiss index of a data set, mapped from disk where faiss can; UserError when it cannot be opened."""
        cached = self._indexes.get((dataset, kind))
        if cached is not None:
            return cached
        kinds = self.kinds(dataset)
        resolved = kinds[0] if kind == "ann" else kind
        if resolved not in kinds:
            raise UserError(f"release {self.folder}: has no {kind} index of {dataset!r}; it has {', '.join(kinds)}")
        index = self._open(dataset, resolved) if resolved == kind else self.index(dataset, resolved)
        self._indexes[dataset, kind] = index
        return index

    def _open(self, dataset: str, kind: str) -> faiss.Index:
        path = self.folder / "index" / dataset
        index = open_index(path, kind, self.entries[dataset]["indexes"][kind])
        expected = (self.manifest.datasets[dataset].vectors, self.manifest.dim, faiss.METRIC_INNER_PRODUCT)
        actual = (index.ntotal, index.d, index.metric_type)
        if actual != expected:
            raise UserError(
                f"{path}/{kind}.faiss: vectors, dimensions and metric are {actual}, the manifest says {expected};"
                f" {REMEDY}"
            )
        return index

    def _rows(
        self, dataset: str, vectors: np.ndarray, k: int, kind: str, threads: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        index, before = self.index(dataset, kind), faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(threads or self.threads)  # counts for the calling thread only: a server has several
        try:
            result: tuple[np.ndarray, np.ndarray] = index.search(
                np.atleast_2d(np.ascontiguousarray(vectors, dtype=np.float32)), min(k, index.ntotal)
            )
        finally:
            faiss.omp_set_num_threads(before)  # torch's are the same
        return result


def load_release(folder: Path | str, threads: int = 1) -> Release:
    """Load a release after checking all that its manifest claims, and warm it; UserError says what differs.

    Checked: the manifest's checksum, before any other file is opened; digests of every file; that encoder and index
    come from one teacher and agree in dim, metric, pooling, normalisation and prompts; numbers of vectors, ids and
    titles, and of documents of a BM25 index; the embeddings of the probe queries. `threads` are those of one encoding
    and of one search.
    """
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise UserError(f"{folder}: no release here; run `dvc repro` (or `make demo`) to build it")
    manifest = read_manifest(folder / "manifest.json")
    if manifest.with_checksum().checksum != manifest.checksum:
        raise UserError(f"{folder}/manifest.json: was changed after it was written; {REMEDY}")
    try:
        return _checked(folder, manifest, threads)
    except UserError:
        raise
    except Exception as error:  # of the libraries that read the files: whoever made these wrote the checksum too
        reason = f"{type(error).__name__}: {line(error)[:200]}"
        raise exhausted(error) or UserError(f"{folder}: cannot be opened ({reason}); {REMEDY}") from error


def _checked(folder: Path, manifest: Manifest, threads: int) -> Release:
    check_files(folder, manifest)
    check_settings(folder, manifest)
    release = Release(folder, manifest, threads)
    vectors = embed_each(release.encode, [probe.text for probe in manifest.probes])
    check_probes(folder / "serving", manifest, vectors, [probe.exported_vector for probe in manifest.probes])
    for dataset in release.datasets:
        for kind in release.kinds(dataset):
            release.index(dataset, kind)
        release.answers(dataset, [probe.text for probe in manifest.probes], vectors, 10)
    return release
