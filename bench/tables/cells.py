"""A cell of a table: one student distilled with one seed, and scored. Finished ones are kept by what they depend on."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentence_transformers
import torch
import transformers
from pydantic import ValidationError

from bench.machine import is_committed, machine
from bench.tables.expected import Mixture, Row, Table
from bench.tables.pipeline import Pipeline, Scores
from bench.tables.trained_teachers import before, of_index, of_scores
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.code import code_digest
from steps.core.tables import Part
from steps.distill.losses import losses
from steps.distill.params import DistillParams, Repeats, StudentParams
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode, load_tower
from steps.tracking.run_ids import git_commit

CELLS = Path(".cache/bench-distill")
STUDENT = "bench"  # what it is called while it is distilled
_HERE = Path(__file__).parent
_LOSSES = sorted({loss.__module__ for loss in losses()})  # which no module imports by name
_CODE = [  # as it is when it is imported: a file may change while a table is made
    code_digest("steps.distill.run", "steps.core.measures", "steps.core.judged", *_LOSSES),
    *(sha256_file(_HERE / name) for name in ("cells.py", "pipeline.py", "trained_teachers.py")),
]
_PACKAGES = [package.__version__ for package in (torch, transformers, sentence_transformers)]


@dataclass(frozen=True)
class Cell:
    """A student's params, all that is shared with others included, and the dimensions at which it is scored."""

    params: DistillParams
    dims: tuple[int, ...] = ()

    def key(self, pipeline: Pipeline) -> str:
        """Hex sha256 of all that the figures depend on: params, data, teacher, code, and how it computes."""
        described = self.params.model_dump(include={"seed", "repeats", "max_length", "validation_texts", "convergence"})
        student = self.params.student[STUDENT]
        moved = {phase.trained for phase in student.phases if phase.trained}
        scored = {name for phase in student.phases for name in phase.all_teachers if name != phase.trained}
        what = {
            "params": described | {"student": student.model_dump()},
            "precision": resolve_precision(self.params.precision),
            "dims": self.dims,
            "data": pipeline.digest,
            "scores": {name: pipeline.scores_digest(name) for name in sorted(scored)},
            "trained": {name: fingerprint(pipeline.teacher_of(name) / "tower").id for name in sorted(moved)},
            "code": _CODE,
            "packages": _PACKAGES,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def make_cell(pipeline: Pipeline, table: Table, row: Row, seed: int) -> Cell:
    """The cell of a row; UserError for a student that params.yaml would not take."""
    run = pipeline.params
    held = table.validation_texts or run.validation_texts
    mixture = mixture_of(table, row)
    if mixture and table.texts:
        repeats = pipeline.repeats(mixture, table.texts, held, seed)
    else:
        repeats = {part: times for part, times in run.repeats.items() if times > 0}
    return Cell(distill_params(run, student_of(pipeline, table, row), repeats, held, seed), tuple(row.dims))


def mixture_of(table: Table, row: Row) -> Mixture | None:
    """The row's mixture, or the table's; None where the run's own repeats serve."""
    return row.mixture or table.mixture


def student_of(pipeline: Pipeline, table: Table, row: Row) -> dict[str, Any]:
    """The row's student as params.yaml would describe it; UserError for a name that the run does not know."""
    if isinstance(row.student, str):
        if row.student not in pipeline.params.student:
            raise UserError(f"bench/expected.yaml: {pipeline.root}/params.yaml describes no student {row.student!r}")
        return pipeline.params.student[row.student].model_dump()
    start = {"start": {"layers": scaled(row.subset, pipeline.depth)}} if row.subset else {}
    return table.common | (row.student or {}) | start


def distill_params(
    run: DistillParams, student: dict[str, Any], repeats: dict[Part, Repeats], validation_texts: int, seed: int
) -> DistillParams:
    """The run's params with this student alone, other repeats and another seed."""
    try:
        chosen = StudentParams.model_validate(student)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise UserError(f"bench/expected.yaml: student {student}: {key}: {item['msg']}; fix it") from None
    changes = {"seed": seed, "repeats": repeats, "validation_texts": validation_texts}
    return run.model_copy(update=changes | {"students": [], "student": {STUDENT: chosen}})


def measure(cell: Cell, pipeline: Pipeline) -> dict[str, Any]:
    """Distil the student and score it on dev and test."""
    chosen = cell.params.student[STUDENT]
    started = time.perf_counter()
    with TemporaryDirectory(prefix="bench-distill.") as folder:
        output = Path(folder) / "student"
        pipeline.distil(STUDENT, cell.params, output)
        stage_seconds = time.perf_counter() - started
        report = read_json(output / "report.json")
        tower = load_tower(output / "query_encoder")
        reader = load_tower(output / "router", "document") if chosen.towers == "joint" else tower
        moved = [phase.trained for phase in chosen.phases if phase.trained is not None]
        trained = [
            trained_teacher(
                output / "teacher" / ((name or "index") if len(set(moved)) > 1 else ""),
                name,
                pipeline,
                cell.params.precision,
            )
            for name in moved[-1:]
        ]
    documents = pipeline.documents
    if chosen.towers != "asymmetric":
        reader.max_seq_length = chosen.max_document_length
        texts = pipeline.document_texts()
        documents = encode(reader, texts, "document", precision=cell.params.precision, caption="documents")
    queries = {f"{item.split}/{item.dataset}": encode(tower, item.texts, "query") for item in pipeline.judged_sets}
    drawn = pipeline.drawn(cell.params, chosen.document_share, report["texts_seen"])
    reported = ("parameters", "bytes", "texts_seen", "steps", "validation_cosine", "texts_per_second")
    return {
        "scores": pipeline.score(queries, documents, cell.dims),
        "training_seconds": report["seconds"],
        "stage_seconds": stage_seconds,
        "drawn": drawn,
        "machine": machine(),
        "git_commit": git_commit(),
        **{name: report[name] for name in reported},
        **{name: value for name, value in report.items() if name.startswith(("held_out_", "expected_"))},
        **(trained[0] if trained else {}),
    }


def trained_teacher(folder: Path, name: str, pipeline: Pipeline, precision: Precision) -> dict[str, Any]:
    """`teacher_after`: nDCG@10 of the teacher in `folder`, which trained along; `teacher_before` of one of scores.

    Such a one has a `name`; before, that of the index is the table's `teacher`.
    """
    if not name:
        return {"teacher_after": of_index(folder, pipeline, precision)}
    return {
        "teacher_before": before(name, pipeline, precision, CELLS),
        "teacher_after": of_scores(folder, pipeline, precision),
    }


def measured(cell: Cell, pipeline: Pipeline) -> tuple[dict[str, Any], bool]:
    """The cell's figures, from disk where it was finished before, and whether they were."""
    path = CELLS / f"{cell.key(pipeline)}.json"
    if path.is_file() and is_committed(old := read_json(path)):
        return old, True
    found = measure(cell, pipeline)
    write_json(path, found)
    return found, False


def teacher_scores(pipeline: Pipeline, dims: tuple[int, ...]) -> dict[str, Scores]:
    """nDCG@10 of the teacher itself, whole ("0") and at these dimensions."""
    what = json.dumps([pipeline.digest, _CODE, _PACKAGES, dims])
    path = CELLS / f"teacher.{hashlib.sha256(what.encode()).hexdigest()}.json"
    if not path.is_file():
        queries = {
            f"{item.split}/{item.dataset}": encode(pipeline.teacher, item.texts, "query")
            for item in pipeline.judged_sets
        }
        write_json(path, pipeline.score(queries, pipeline.documents, (0, *dims)))
    return read_json(path)


# the 13 layer subsets of query-encoder alignment (App. A.1)
PAPER_DEPTH = 12
PAPER = (
    [1, 4, 7, 10], [0, 1, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
    [0, 10], [0, 11], [1, 10], [1, 11],
    [0], [1], [10], [11],
)  # fmt: skip


def scaled(subset: Sequence[int], depth: int, of: int = PAPER_DEPTH) -> list[int]:
    """The layers of a teacher with `depth` layers that answer to `subset` of one with `of`, counted from 0.

    A block of neighbours stays the first, the last or the middle one. Otherwise the two layers at either end keep their
    distance from it, and layers between are spread evenly. UserError where that gives a layer twice.
    """
    count = len(subset)
    if count > 2 and list(subset) == list(range(subset[0], subset[0] + count)):
        first = {0: 0, of - count: depth - count}.get(subset[0], (depth - count) // 2)
        found = list(range(first, first + count))
    else:
        ends = {layer: layer if layer < 2 else depth - of + layer for layer in subset if layer < 2 or layer >= of - 2}
        low, high = min(subset), max(subset)
        found = []
        for layer in subset:
            if layer not in ends:
                share = (layer - low) / (high - low)
                ends[layer] = round(ends[low] + share * (ends[high] - ends[low]))
            found.append(ends[layer])
    if len(set(found)) < count or not all(0 <= layer < depth for layer in found):
        raise UserError(f"layer subset {list(subset)}: a teacher of {depth} layers has no such; leave the row out")
    return found
