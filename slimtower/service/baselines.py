"""What students are compared with on the page: the teacher's tower and BM25, where their files and torch are there."""

import threading
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from slimtower.lexical.bm25 import Bm25
from slimtower.service.corpus import Corpus
from slimtower.service.run_facts import teacher_base
from slimtower.service.systems import Serving
from slimtower.serving.dims import truncate
from slimtower.serving.release import Hit, Release
from slimtower.serving.tower_files import tower_facts

BM25, TEACHER, FUSED_TEACHER = "bm25", "teacher", "teacher+bm25"


class Baselines:
    """Both are loaded by the first request that names them: torch and a model take seconds."""

    def __init__(self, project: Path | None, corpus: Corpus, *, enabled: bool) -> None:
        self.project, self.corpus, self.enabled = project, corpus, enabled
        self._lock = threading.Lock()
        self._tower: tuple[Any, dict[str, str]] | None = None
        self._lexical: dict[str, tuple[object, Bm25, dict[str, str]]] = {}  # with the state of the corpus, and titles

    def names(self, serving: Serving) -> list[str]:
        """Those that could answer; the teacher with BM25 as well where the default student's release fuses."""
        if not self.enabled:
            return []
        teacher = bool(self._towers()) and find_spec("torch") is not None
        release = serving.student("").release
        fused = any(release.fusion(dataset) for dataset in release.datasets)
        return [FUSED_TEACHER] * (teacher and fused) + [TEACHER] * teacher + [BM25] * (self.corpus.state() is not None)

    def teacher_name(self, release: Release) -> str:
        """The model that the release's teacher is, or was trained from; "" if the run does not say."""
        teacher = release.manifest.teacher if self.enabled else {}
        return next((teacher_base(folder) for folder in self._towers() if _is_of(folder, teacher)), "")

    def prepare(self, name: str, dataset: str, release: Release) -> None:
        """Load what a system needs, so that its answer is timed without; UserError if it cannot be loaded."""
        if name == BM25:
            self._index(dataset)
        else:
            self._loaded(release)

    def encode(self, texts: list[str], release: Release) -> np.ndarray:
        """The teacher's embeddings of queries, float32 `(len(texts), dim)`; UserError if it is another's teacher."""
        tower = self._loaded(release)
        with self._lock:  # a tower is not made to be used from several threads
            return truncate(tower.encode_query(texts, show_progress_bar=False), release.manifest.dim)

    def _loaded(self, release: Release) -> Any:
        teacher = release.manifest.teacher
        with self._lock:
            if self._tower is None or self._tower[1] != teacher:
                tower = self._load(teacher)
                tower.encode_query([probe.text for probe in release.manifest.probes], show_progress_bar=False)  # slow
                self._tower = tower, teacher
            return self._tower[0]

    def bm25(self, dataset: str, texts: list[str], k: int) -> list[list[Hit]]:
        """BM25's hits of each query, best first."""
        _, engine, titles = self._index(dataset)
        scores, ids = engine.search(texts, k)
        return [
            [Hit(doc_id, float(score), titles[doc_id]) for doc_id, score in zip(*line, strict=True)]
            for line in zip(ids, scores, strict=True)
        ]

    def _index(self, dataset: str) -> tuple[object, Bm25, dict[str, str]]:
        with self._lock:
            state = self.corpus.state()
            if dataset not in self._lexical or self._lexical[dataset][0] != state:
                ids, titles, texts = self.corpus.texts(dataset)
                if not ids:
                    raise UserError(f"bm25: the corpus holds nothing of {dataset!r}")
                self._lexical[dataset] = state, Bm25(ids, texts), dict(zip(ids, titles, strict=True))
            return self._lexical[dataset]

    def _towers(self) -> list[Path]:
        """Those that compute here: one behind an API would be paid for each query, and timed with the network."""
        towers = sorted(self.project.glob("models/teach/*/tower")) if self.project else []
        return [folder for folder in towers if _computes_here(folder)]

    def _load(self, teacher: dict[str, str]) -> Any:
        for folder in self._towers():
            if _is_of(folder, teacher):
                from sentence_transformers import SentenceTransformer

                return SentenceTransformer(str(folder), trust_remote_code=False).float()
        raise UserError(
            "teacher: none of models/teach is the one that this release's index was made with, or that is behind an API"
        )


def _is_of(folder: Path, digests: dict[str, str]) -> bool:
    """Whether a tower has these digests; one that is checked out at this moment has none yet."""
    with suppress(UserError, OSError):
        return _digests(folder, _state(folder)) == digests
    return False


def _computes_here(tower: Path) -> bool:
    """Whether a folder is a tower that reads queries itself; one that lacks a file does not."""
    with suppress(UserError, OSError):
        return "Endpoint" not in tower_facts(tower, "query")["modules"]
    return False


def _state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells one content of a folder from another: `dvc checkout` leaves files that are the same in both."""
    stats = ((path, path.stat()) for path in sorted(folder.rglob("*")))
    return tuple((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@cache
def _digests(folder: Path, state: tuple[tuple[str, int, int, int], ...]) -> dict[str, str]:
    return asdict(fingerprint(folder))
