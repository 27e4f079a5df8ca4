"""What is compared: BM25, the teacher, what it was before, and each student. Nothing is loaded before it is asked."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file
from slimtower.common.fingerprints import fingerprint
from slimtower.lexical.bm25 import Bm25
from slimtower.serving.checks import check_probes
from slimtower.serving.dims import truncate
from slimtower.serving.index_files import shards_of
from slimtower.serving.release import Release, load_release
from slimtower.serving.tower_files import tower_bytes, tower_facts
from steps.encoders.towers import announce_texts, encode, load_tower
from steps.evaluate.latency import Encode
from steps.evaluate.params import BATCH_SIZE
from steps.retrieval.lexical import corpus_bm25

Hits = tuple[list[np.ndarray], list[list[str]]]  # scores and document ids, one entry a query, best first
Search = Callable[[str, list[str], int], Hits]  # data set, query texts, k
BM25, TEACHER = "bm25", "teacher"


def fused_name(dense: str) -> str:
    """What the system is called that fuses a dense one with BM25."""
    return f"{dense}+{BM25}"


@dataclass(frozen=True)
class Lexical:
    """BM25 over each data set's documents; `content` is a digest of all that its answers depend on."""

    content: str
    search: Search
    name: str = BM25


@dataclass(frozen=True)
class Teacher:
    """The teacher's query tower over the index of any release; `bytes`: its size on disk, None behind an API."""

    content: str
    release: Release
    encode: Encode
    bytes: int | None
    name: str = TEACHER


@dataclass(frozen=True)
class Student:
    """A student as its release serves it, exported and at the precision that serves; `trained` is it in PyTorch."""

    name: str
    content: str
    release: Release
    trained: Encode

    @property
    def encode(self) -> Encode:
        """As it serves."""
        return self.release.encode


@dataclass(frozen=True)
class Other:
    """A system of which quality alone is measured: a tower that the teacher was before, or one that re-ranks its hits.

    `search_in` opens it for some data sets, with an empty folder for what it makes of documents. `comparable`: its
    scores mean the same whatever the query.
    """

    name: str
    content: str
    search_in: Callable[[Collection[str], Path], Search]
    comparable: bool = True


System = Lexical | Teacher | Student | Other


@dataclass(frozen=True)
class Systems:
    """All that an evaluation compares."""

    bm25: Lexical
    teacher: Teacher
    students: Sequence[Student]
    earlier: Sequence[Other] = ()
    reranked: Sequence[Other] = ()


def open_systems(ingest: Path, teach: Path, releases: Mapping[str, Path]) -> Systems:
    """BM25 over the corpus in `ingest`, the teacher, and the releases by name of the student."""
    students = [
        Student(name, release.manifest.checksum, release, tower_encoder(release))
        for name, release in open_releases(releases, teach).items()
    ]
    release, tower = students[0].release, teach / "tower"  # every release carries the same index
    manifest, behind_api = release.manifest, "Endpoint" in tower_facts(tower, "query")["modules"]
    content = digest(fingerprint(tower).id, manifest.index_manifest, manifest.index_files)
    size = None if behind_api else tower_bytes(tower, "query")
    return Systems(
        Lexical(sha256_file(ingest / "corpus.parquet"), bm25_search(ingest)),
        Teacher(content, release, _teacher_encoder(tower, manifest.dim), size),
        students,
    )


def open_releases(folders: Mapping[str, Path], teach: Path) -> dict[str, Release]:
    """Load and verify every release; UserError when one is missing or was distilled from another teacher."""
    teacher = asdict(fingerprint(teach / "tower"))
    releases = {}
    for student, folder in folders.items():
        releases[student] = load_release(folder)
        if releases[student].manifest.teacher != teacher:
            raise UserError(
                f"{folder}/manifest.json: made from another teacher than {teach}/tower; run `dvc repro` to release"
                f" {student!r} again"
            )
    return releases


def bm25_search(ingest: Path) -> Search:
    """Search in a BM25 index of each data set, built when its first query is asked, in a temporary folder."""
    folder = TemporaryDirectory(prefix="bm25.")

    @cache
    def engine(dataset: str) -> Bm25:
        built, path = corpus_bm25(ingest, dataset), Path(folder.name) / digest(dataset)
        built.save(path)
        return Bm25.open(path, built.doc_ids)

    return lambda dataset, texts, k: engine(dataset).search(texts, k)


def tower_encoder(release: Release) -> Encode:
    """The release's student in fp32, as trained; loaded when the first text is read."""
    tower = cache(lambda: student_tower(release))
    return lambda texts: truncate(encode(tower(), texts, "query"), release.manifest.dim)


def _teacher_encoder(folder: Path, dim: int) -> Encode:
    tower = cache(lambda: load_tower(folder))

    def embed(texts: list[str]) -> np.ndarray:
        if len(texts) > 1:
            announce_texts(tower(), "query", texts, "evaluate: queries")
        return truncate(encode(tower(), texts, "query", batch_size=BATCH_SIZE), dim)

    return embed


def remembering(encode: Encode) -> Encode:
    """The encoder, reading each text once; not to be timed."""
    vectors: dict[str, np.ndarray] = {}

    def embed(texts: list[str]) -> np.ndarray:
        if unread := [text for text in dict.fromkeys(texts) if text not in vectors]:
            vectors.update(zip(unread, encode(unread), strict=True))
        return np.stack([vectors[text] for text in texts])

    return embed


def dense_search(embed: Encode, release: Release, kind: str = "flat") -> Search:
    """Embed queries, then search the release's index of that kind, on all cores: not to be timed."""

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        scores, doc_ids = release.search(dataset, embed(texts), k, kind, torch.get_num_threads())
        # An index of fewer than k documents pads its scores.
        return [row[: len(ids)] for row, ids in zip(scores, doc_ids, strict=True)], doc_ids

    return search


def digest(*values: object) -> str:
    """Hex sha256 over values that JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def student_tower(release: Release) -> SentenceTransformer:
    """Load a release's query_encoder/; UserError when it is not the one of the manifest's probes."""
    probes, folder = release.manifest.probes, release.folder / "query_encoder"
    tower = load_tower(folder)
    vectors = truncate(encode(tower, [probe.text for probe in probes], "query"), release.manifest.dim)
    check_probes(folder, release.manifest, vectors, [probe.student_vector for probe in probes])
    return tower


def document_rows(release: Release, dataset: str, doc_ids: Iterable[str]) -> np.ndarray:
    """Rows of documents in the indexes of a data set, int64; -1 for one that the release does not hold."""
    ids = list(doc_ids)
    unique_ids = set(ids)
    rows = {doc_id: row for row, doc_id in enumerate(release.documents(dataset).ids) if doc_id in unique_ids}
    return np.array([rows.get(doc_id, -1) for doc_id in ids], dtype=np.int64)


def document_vectors(release: Release, dataset: str, rows: np.ndarray) -> np.ndarray:
    """Vectors of these rows of the exact index, float32 `(rows, dim)`."""
    index = release.index(dataset, "flat")
    vectors, start = np.empty((len(rows), index.d), dtype=np.float32), 0
    for shard in shards_of(index):
        in_shard = np.flatnonzero((rows >= start) & (rows < start + shard.ntotal))
        if len(in_shard):
            vectors[in_shard] = shard.reconstruct_batch(rows[in_shard] - start)
        start += shard.ntotal
    return vectors


def fusing(metrics: Mapping[str, Any], student: str = "") -> list[str]:
    """Data sets on which a student's release fuses with BM25; without a name on which any does; by metrics.json."""
    rows = metrics.get("fused", {})
    return sorted(
        dataset
        for dataset, row in rows.items()
        if any(figures["carried"] for name, figures in row.items() if student in ("", name))
    )


def behind_api(metrics: Mapping[str, Any]) -> bool:
    """Whether the teacher is behind an API, so that its query side has no size here; by metrics.json."""
    return TEACHER not in metrics["sizes"]


def served_ms_ratio(metrics: Mapping[str, Any], student: str) -> float:
    """How many times as fast as the teacher a student answers, as `served_ms` counts; by metrics.json."""
    return float(metrics["served"][TEACHER]["p50_ms"] / metrics["served"][student]["p50_ms"])


def served_name(metrics: Mapping[str, Any], student: str) -> str:
    """A student's name, with BM25 if its release adds that: `4l with BM25`."""
    sets = fusing(metrics, student)
    if not sets:
        return student
    return f"{student} with BM25{'' if len(sets) == len(metrics['queries']) else ' on ' + ', '.join(sets)}"


def served_systems(metrics: Mapping[str, Any], dataset: str) -> dict[str, str]:
    """Student -> the system, alone or fused, by which its release answers on a data set; by metrics.json."""
    return {name: fused_name(name) if dataset in fusing(metrics, name) else name for name in metrics["retention"]}


def fused_bytes(metrics: Mapping[str, Any], student: str) -> int:
    """Size of the BM25 indexes that a student's release carries; by metrics.json."""
    return sum(metrics["fused"][dataset][student]["bytes"] for dataset in fusing(metrics, student))
