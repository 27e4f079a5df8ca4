"""Results of systems below SLIMTOWER_CACHE/evaluate, keyed by all that they depend on: what is known is not measured.

A changed student is measured alone. Encoders take turns while they are timed, those that are not known yet.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import faiss
import torch

from slimtower.common.errors import line
from slimtower.common.files import cache_root, last_used, read_json, staged_folder, write_json
from steps.core.code import code_digest
from steps.core.judged import JudgedSet
from steps.evaluate.fusing import CachedSearch, Fused
from steps.evaluate.latency import THROUGHPUT_BATCH, Encode, Latency, measure, processor, sample
from steps.evaluate.measuring import (
    RESULT,
    RUNS,
    Result,
    Task,
    measure_fused,
    measure_other,
    measure_quality,
    measure_student,
    measure_teacher,
    read_result,
    write_result,
)
from steps.evaluate.systems import Student, System, Systems, Teacher, digest, remembering

_LATENCY = "latency.json"
_MIN_RESULTS, _SYSTEM, _DAY = 100, 8, 86_400  # results and latencies: at least so many, for a system so many; seconds
_LIBRARIES = ("bm25s", "ir-measures", "numpy", "onnxruntime", "pytrec-eval-terrier", "sentence-transformers",
              "tokenizers", "torch", "transformers")  # fmt: skip


@dataclass(frozen=True)
class Measurements:
    """Results and run files of all systems, and latencies of those with an encoder, by name; and which are new."""

    results: Mapping[str, Result]
    runs: Sequence[Path]
    latencies: Mapping[str, Latency]
    measured: Sequence[str]
    timed: Sequence[str]

    def describe(self) -> str:
        """What was done, and what was known: `measured 4l; bm25, teacher, static from the cache`."""
        again = [name for name in self.timed if name not in self.measured]
        cached = [name for name in self.results if name not in {*self.measured, *self.timed}]
        named = ((self.measured, "measured {}"), (again, "timed {}"), (cached, "{} from the cache"))
        return "; ".join(text.format(", ".join(names)) for names, text in named if names)


def measure_all(systems: Systems, task: Task) -> Measurements:
    """Measure, then time, every system that the cache does not know.

    Dense systems are measured fused with BM25 too, with `evaluate.fused` or where a release fuses. What is no encoder
    of teacher or students is measured only where something is judged.
    """
    _prune(_SYSTEM * (len(systems.students) + len(systems.earlier) + len(systems.reranked) + 2))
    results: dict[str, Result] = {}
    runs: list[Path] = []
    measured: list[str] = []

    def add(system: System | Fused, subtask: Task, work: Callable[[Path], Result], reference: str = "") -> Result:
        folder = kept_folder(result_key(system, subtask, reference))
        result = _read_cached(folder, task.judged)
        if result is None:
            with staged_folder(folder) as staging:
                write_result(staging, work(staging / RUNS))
            measured.append(system.name)
            result = read_result(folder, task.judged)
        runs.extend(sorted((folder / RUNS).iterdir()))
        results[system.name] = result
        return result

    judged, bm25 = replace(task, texts=()), systems.bm25
    all_fused = task.params.fused and bool(task.judged)
    shared = CachedSearch(bm25.search) if all_fused else bm25.search

    def add_fused(dense: Teacher | Student, encode: Encode) -> None:
        fused = Fused(dense, bm25)
        add(fused, judged, partial(measure_fused, fused, judged, encode=encode, lexical=shared))

    if task.judged:
        add(bm25, judged, partial(measure_quality, bm25.name, shared, judged))
        for compared in (*systems.earlier, *systems.reranked):
            add(compared, judged, partial(measure_other, compared, judged))
    encode = remembering(systems.teacher.encode)
    teacher = add(systems.teacher, task, partial(measure_teacher, systems.teacher, task, encode=encode))
    if all_fused:
        add_fused(systems.teacher, encode)
    for student in systems.students:
        encode = remembering(student.encode)
        work = partial(measure_student, student, task, encode=encode, teacher=teacher)
        add(student, task, work, systems.teacher.content)
        if all_fused or (task.judged and any(map(student.release.fusion, student.release.datasets))):
            add_fused(student, encode)
    latencies, timed = time_all(systems, task)
    return Measurements(results, runs, latencies, measured, timed)


def _read_cached(folder: Path, judged: Sequence[JudgedSet]) -> Result | None:
    """The result in a folder; None without one, or, with a line, for one that a power failure cut."""
    if not (folder / RESULT).is_file():
        return None
    try:
        return read_result(folder, judged)
    except Exception as error:  # what JSON, zip files and numpy come up with: it is measured anew
        print(f"evaluate: {folder}: cannot be read ({line(error)[:100]}); measured anew", file=sys.stderr)
        return None


def time_all(systems: Systems, task: Task) -> tuple[dict[str, Latency], list[str]]:
    """Latencies by name, and the systems that were timed for it."""
    params, texts = task.params, task.timed_texts()
    single = sample(texts, min(params.latency_queries, len(texts)), params.seed)
    batches = -(-params.latency_queries // THROUGHPUT_BATCH)
    batched = sample(texts, batches * THROUGHPUT_BATCH, params.seed + 1)
    texts_digest, paths, unknown = digest(single, batched, THROUGHPUT_BATCH), {}, {}
    dense: list[Teacher | Student] = [systems.teacher, *systems.students]
    for system in dense:
        paths[system.name] = kept_folder(key_of(system.name, system.content, texts_digest)) / _LATENCY
        if not paths[system.name].is_file():
            unknown[system.name] = system.encode
    if unknown:
        for name, latency in measure(unknown, single, batched, THROUGHPUT_BATCH).items():
            write_json(paths[name], asdict(latency))
    return {name: Latency(**read_json(path)) for name, path in paths.items()}, list(unknown)


def result_key(system: System | Fused, task: Task, reference: str) -> str:
    """What a result depends on, the machine too, in 32 hex digits; `reference`: content of the teacher of a student."""
    params = task.params.model_dump(include={"measures", "latency_queries", "seed"})
    judged, texts = [asdict(item) for item in task.judged], [asdict(item) for item in task.texts]
    return key_of(system.name, system.content, reference, digest(judged, texts), params)


def key_of(*values: object) -> str:
    """What something depends on, machine, libraries and measuring code included, in 32 hex digits."""
    return digest(*values, *_surroundings())[:32]


@cache
def _surroundings() -> tuple[str, ...]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    code = code_digest("steps.evaluate.measuring", "steps.evaluate.latency")
    return processor(), device, f"faiss {faiss.__version__}", *libraries, code


def kept_folder(key: str) -> Path:
    """Where what has this key is kept, below the cache of results; what is there counts as used."""
    folder = cache_root() / "evaluate" / key
    if folder.is_dir():
        os.utime(folder)
    return folder


def _prune(count: int) -> None:
    """Remove what was not used for a day, except the `count` (at least _MIN_RESULTS) results that were used last."""
    folders, latest = (cache_root() / "evaluate").glob("[!.]*"), time.time() - _DAY
    for folder in sorted(folders, key=last_used)[: -max(_MIN_RESULTS, count)]:
        if last_used(folder) < latest * 1e9:
            shutil.rmtree(folder, ignore_errors=True)
