"""A cell of a table: one teacher trained with one seed, and scored. Finished ones are kept by what they depend on."""

import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers import SentenceTransformer

from bench.machine import is_committed, machine
from bench.tables.pipeline import Pipeline, Scores
from bench.teachers.beside_ranker import beside_ranker
from bench.teachers.mined import Mined
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.code import code_digest
from steps.core.measures import ndcg_at_10
from steps.core.versions import library_versions
from steps.encoders.bases import resolve_base
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode, load_tower
from steps.retrieval.exact_search import best_documents
from steps.teach import run as stage
from steps.teach.kinds import kinds
from steps.teach.kinds.base import Teacher
from steps.tracking.run_ids import git_commit
from steps.tracking.runs import NullRun

CELLS = Path(".cache/bench-teachers")
_HITS = 100  # more than the 10 that count, so that ties at the tenth are broken by document id
_CODE = {  # as it is when it is imported: a file may change while a table is made
    kind.__module__: [
        code_digest("steps.teach.run", kind.__module__, "steps.retrieval.exact_search", "steps.rank.quality"),
        *(sha256_file(Path(__file__).with_name(name)) for name in ("cells.py", "beside_ranker.py")),
    ]
    for kind in kinds()
}


class LastMetrics(NullRun):
    """A run that keeps the last value of each single metric."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.values[name] = value


def key(teacher: Teacher, mined: Mined) -> str:
    """Hex sha256 of all that the figures depend on: params, base, data, code, and how it computes."""
    base = Path(resolve_base(getattr(teacher, "base", "")))
    dependencies = {
        "params": teacher.model_dump(),
        "precision": resolve_precision(_precision(teacher)),
        "base": asdict(fingerprint(base)) if (base / "modules.json").is_file() else str(base),
        "data": mined.digest,
        "code": _CODE[type(teacher).__module__],
        "packages": library_versions(),
    }
    return hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()


def measured(teacher: Teacher, mined: Mined) -> tuple[dict[str, Any], bool]:
    """The teacher's figures, from disk where they were found before, and whether they were."""
    path = CELLS / f"{key(teacher, mined)}.json"
    if path.is_file() and is_committed(old := read_json(path)):
        return old, True
    figures = measure(teacher, mined.pipeline)
    write_json(path, figures)
    return figures, False


def measure(teacher: Teacher, pipeline: Pipeline) -> dict[str, Any]:
    """Train the teacher and score it on dev and test; UserError where the data left it untrained."""
    run, started = LastMetrics(), time.perf_counter()
    with TemporaryDirectory(prefix="bench-teachers.") as folder:
        output = Path(folder) / "teacher"
        stage.run(
            ingest=pipeline.ingest, mine=pipeline.mine, output=output, params=teacher, run=run, rankers=pipeline.rankers
        )
        stage_seconds = time.perf_counter() - started
        report = read_json(output / "report.json")
        if report.get("note"):
            raise UserError(
                f"{pipeline.root}: the teacher was not trained ({report['note']}); give the row data to mine, or set"
                " its epochs: 0.0"
            )
        tower = load_tower(output / "tower")
        scores = scored(tower, pipeline, _precision(teacher))
        ranker_figures = beside_ranker(tower, pipeline)
    return {
        "scores": scores,
        "triplets": report.get("triplets", 0),
        "by_source": report.get("by_source", {}),
        "rounds": report.get("rounds", []),
        "training_seconds": run.values.get("training_seconds", 0.0),
        "stage_seconds": stage_seconds,
        "seconds": time.perf_counter() - started,
        **({"beside_ranker": ranker_figures} if ranker_figures else {}),
        "machine": machine(),
        "git_commit": git_commit(),
    }


def scored(tower: SentenceTransformer, pipeline: Pipeline, precision: Precision) -> Scores:
    """nDCG@10 of each dev and test query, by exact search of its whole data set; the tower compares inner products."""
    documents = encode(tower, pipeline.document_texts(), "document", precision=precision, caption="embed documents")
    scores: Scores = {}
    for item in pipeline.judged_sets:
        rows, ids = pipeline.corpus[item.dataset]
        name_of = dict(zip(rows.tolist(), ids, strict=True))
        values, hits = best_documents(encode(tower, item.texts, "query"), documents, _HITS, rows)
        names = [[name_of[row] for row in line] for line in hits.tolist()]
        ndcg = ndcg_at_10(item.qrels, item.query_ids, names, list(values))
        scores.setdefault(item.split, {})[item.dataset] = [round(value, 6) for value in ndcg.tolist()]
    return scores


def _precision(teacher: Teacher) -> Precision:
    precision: Precision = getattr(teacher, "precision", "auto")
    return precision
