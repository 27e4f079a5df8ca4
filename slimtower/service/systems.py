"""What answers: released students, swapped whole; what the page compares with them, and what their run left for it."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from slimtower.common.errors import UserError
from slimtower.common.files import read_columns, read_json
from slimtower.common.fingerprints import fingerprint
from slimtower.lexical.bm25 import Bm25
from slimtower.service.corpus import Corpus
from slimtower.serving.dims import truncate
from slimtower.serving.display import answered_examples
from slimtower.serving.release import Hit, Release
from slimtower.serving.tower_files import tower_facts, transformer_layers

BM25, TEACHER, FUSED_TEACHER = BASELINES = "bm25", "teacher", "teacher+bm25"
EXAMPLES = 3
_LONGEST = 60  # characters of an example
_REPORT = "reports/report.html"


class Origin(NamedTuple):
    """Where a release came from, as far as its source knows; "" for what it does not."""

    source: str
    version: str = ""
    created: str = ""
    commit: str = ""
    data: str = ""
    run: str = ""
    promoted: str = ""
    promoted_by: str = ""


@dataclass(frozen=True)
class Served:
    """A release that answers under a name: its folder's, or the alias of a registered model."""

    name: str
    release: Release
    origin: Origin
    since: str
    model_bytes: int = field(init=False)
    """As loaded: its files may be gone by now."""
    layers: int | None = field(init=False)
    """Of its transformer; 0 if it has none, None if its files do not say."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_bytes", self.release.model_bytes)
        object.__setattr__(self, "layers", transformer_layers(self.release.folder / "query_encoder", "query"))

    @property
    def identity(self) -> dict[str, str]:
        """What an answer says of the release that gave it."""
        manifest = self.release.manifest
        return {"student": manifest.student, "manifest": manifest.checksum, "version": self.origin.version}

    def facts(self) -> dict[str, Any]:
        """What the page shows of it: who made this, from what, and when."""
        manifest = self.release.manifest
        settings = manifest.encoder_settings
        return {
            "system": self.name,
            "kind": "student",
            "release": self.identity,
            "since": self.since,
            "teacher": manifest.teacher.get("weights", "")[:12],
            "layers": self.layers,
            "dim": manifest.dim,
            "format": settings.format,
            "precision": settings.precision,
            "model_bytes": self.model_bytes,
            "datasets": {name: collection.vectors for name, collection in sorted(manifest.datasets.items())},
            "fused": {name: str(fusion) for name in self.release.datasets if (fusion := self.release.fusion(name))},
            **self.origin._asdict(),
        }


@dataclass(frozen=True)
class Serving:
    """All that answers at one moment. Requests take it once: what they see of it does not change."""

    students: Mapping[str, Served]
    default: str

    def student(self, name: str) -> Served:
        """The student of that name, or the default if the name is empty; UserError for an unknown one."""
        served = self.students.get(name or self.default)
        if served is None:
            raise UserError(f"system {name!r} does not answer here; choose one of {', '.join(self.students)}")
        return served


def stamp(seconds: float) -> str:
    """Unix seconds as ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Baselines:
    """The teacher's tower and BM25, if files and torch are there; the first request loads them, which takes seconds."""

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


def report_of(project: Path | None) -> Path | None:
    """The report of a project's run; None if it was not evaluated."""
    path = project / _REPORT if project else None
    return path if path and path.is_file() else None


def example_queries(serving: Serving, project: Path | None) -> dict[str, list[str]]:
    """Queries to try, of each data set of the default student: those of the embedded data that every student answers.

    For other data, dev queries of the run for which teacher and students have a relevant document as their first hit.
    """
    release = serving.student("").release
    examples = {}
    for dataset in release.datasets:
        answered = [answered_examples(release, dataset)]
        answered += [
            answered_examples(served.release, dataset)
            for served in serving.students.values()
            if dataset in served.release.datasets
        ]
        shared = [query for query in answered[0] if all(query in answers for answers in answered)]
        examples[dataset] = shared or (_agreed_queries(project, dataset) if project else [])
    return {dataset: queries[:EXAMPLES] for dataset, queries in examples.items() if queries}


def _agreed_queries(project: Path, dataset: str) -> list[str]:
    """Dev queries whose first hit is relevant in every dense search that the evaluation measured; short ones first."""
    only = {"dataset": dataset, "split": "dev", "measure": "RR@10"}
    filters = [(name, "==", value) for name, value in only.items()] + [("model", "!=", "bm25")]
    try:
        rows = read_columns(project / "reports/per_query.parquet", "query_id", "value", filters=filters)
        queries = read_columns(project / "data/ingest/queries.parquet", "query_id", "text")
    except (UserError, OSError):
        return []
    worst = rows.group_by("query_id").aggregate([("value", "min")]).filter(pc.field("value_min") == 1.0)
    agreed = queries.filter(pc.is_in(queries["query_id"], worst["query_id"].combine_chunks()))["text"].to_pylist()
    texts = [text for text in agreed if len(text) <= _LONGEST]
    return sorted(texts, key=lambda text: (abs(len(text.split()) - 4), text))


def teacher_base(tower: Path) -> str:
    """The model that a teacher was trained from, by its own name; "" if its report does not say."""
    try:
        report = read_json(tower.parent / "report.json")
    except (UserError, OSError):
        return ""
    base = report.get("base") if isinstance(report, dict) else None
    return Path(base).name if isinstance(base, str) else ""
