"""What is compared: BM25, the teacher, and each student, all behind one search function."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from steps.core.errors import UserError
from steps.core.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.core.texts import document_text
from steps.core.towers import encode, load_tower
from steps.evaluate.bm25 import Bm25
from steps.evaluate.latency import Encode
from steps.serving.dims import cut
from steps.serving.release import Release, load_release
from steps.serving.tower_files import tower_bytes

Hits = tuple[list[np.ndarray], list[list[str]]]  # scores and document ids, one entry a query, best first
Search = Callable[[str, list[str], int], Hits]  # data set, query texts, k


@dataclass(frozen=True)
class System:
    """A way to answer queries. `encode` and `bytes` (size of the query side) are None where there is no encoder."""

    name: str
    search: Search
    encode: Encode | None
    bytes: int | None


def open_releases(folders: Mapping[str, Path], teach: Path) -> dict[str, Release]:
    """Load and verify every release; UserError when one is missing or was distilled from another teacher."""
    teacher = asdict(fingerprint(teach / "tower"))
    releases = {}
    for student, folder in folders.items():
        if student in {"bm25", "teacher"}:
            raise UserError(f"params.yaml: distill.students names {student!r}, a model of its own; rename the student")
        if not folder.is_dir():
            raise UserError(f"{folder}: not found; distil and release the student {student!r} first (`dvc repro`)")
        release = load_release(folder)
        if release.manifest.teacher != teacher:
            raise UserError(
                f"{folder}/manifest.json: made from another teacher than {teach}/tower; run `dvc repro` to release"
                f" {student!r} again"
            )
        releases[student] = release
    return releases


def bm25_system(ingest: Path) -> System:
    """BM25 over each data set's documents."""
    corpus: dict[str, tuple[list[str], list[str]]] = {}
    for row in read_table(ingest, "corpus").to_pylist():
        ids, texts = corpus.setdefault(row["dataset"], ([], []))
        ids.append(row["doc_id"])
        texts.append(document_text(row["title"], row["content"]))
    engines = {dataset: Bm25(ids, texts) for dataset, (ids, texts) in corpus.items()}
    return System("bm25", lambda dataset, texts, k: engines[dataset].search(texts, k), encode=None, bytes=None)


def teacher_system(teach: Path, release: Release, batch_size: int) -> System:
    """The teacher's query tower over the exact index, which is the same in every release."""
    tower = load_tower(teach / "tower")

    def embed(texts: list[str]) -> np.ndarray:
        return cut(encode(tower, texts, "query", batch_size=batch_size), release.manifest.width)

    return System("teacher", dense_search(embed, release), embed, tower_bytes(teach / "tower", "query"))


def student_system(name: str, release: Release) -> System:
    """A student as its release serves it (exported, at the precision that serves), over the exact index."""
    return System(name, dense_search(release.encode, release), release.encode, release.model_bytes)


def remembering(encode: Encode) -> Encode:
    """The encoder, reading each text once; not to be timed."""
    known: dict[str, np.ndarray] = {}

    def embed(texts: list[str]) -> np.ndarray:
        if unread := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(unread, encode(unread), strict=True))
        return np.stack([known[text] for text in texts])

    return embed


def dense_search(embed: Encode, release: Release, kind: str = "flat") -> Search:
    """Embed queries, then search the release's index of that kind."""

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        scores, doc_ids = release.search(dataset, embed(texts), k, kind)
        # An index of fewer than k documents pads its scores.
        return [row[: len(ids)] for row, ids in zip(scores, doc_ids, strict=True)], doc_ids

    return search
