"""A second look at teacher and students on the judged test queries: perturbed queries, geometry, search effort, codes.

What is known is not measured again: each look is kept below SLIMTOWER_CACHE/evaluate beside the results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slimtower.common.files import read_json, staged_folder, write_json
from steps.core.code import code_digest
from steps.core.judged import JudgedSet, other_hits
from steps.core.measures import NDCG
from steps.evaluate.cache import kept_folder, key_of
from steps.evaluate.effort import measure_effort
from steps.evaluate.fusing import fused_search
from steps.evaluate.geometry import comparable
from steps.evaluate.measuring import Result, Task
from steps.evaluate.perturbations import PERTURBATIONS, drawn_rows, perturbed_set
from steps.evaluate.proposition import judged_pairs, measure_proposition
from steps.evaluate.scoring import score
from steps.evaluate.semantic_codes import measure_codes, read_codes
from steps.evaluate.slicing import MIN_QUERIES
from steps.evaluate.space import NEIGHBOURS, measure_space
from steps.evaluate.systems import (
    Search,
    Student,
    Systems,
    Teacher,
    dense_search,
    document_rows,
    document_vectors,
    remembering,
)

PERTURBED_QUERIES = 200  # of a data set, drawn with the seed
_FILE = "diagnosis.json"
_EFFORT_QUERIES = 500  # of a data set, drawn with the seed


@dataclass(frozen=True)
class Diagnosis:
    """One tower, by data set.

    `perturbed[data set][perturbation]`: nDCG@10 of the perturbed queries in the order of `perturbed_rows`;
    `perturbed_served`: of a student as its release serves it, where that fuses BM25. The others hold what metrics.json
    has of it: `proposition` (students only), `space`, `effort`, `codes`.
    """

    perturbed: Mapping[str, Mapping[str, Sequence[float]]]
    perturbed_served: Mapping[str, Mapping[str, Sequence[float]]]
    proposition: Mapping[str, Mapping[str, float]]
    space: Mapping[str, Mapping[str, float]]
    effort: Mapping[str, Mapping[str, Any]]
    codes: Mapping[str, Mapping[str, Sequence[float]]]


def diagnose_all(systems: Systems, task: Task, teacher: Result) -> dict[str, Diagnosis]:
    """The teacher and every student by name; `teacher` is its result. Nothing where nothing is judged."""
    towers: list[Teacher | Student] = [systems.teacher, *systems.students] if task.test_sets() else []
    diagnoses = {}
    for tower in towers:
        folder = kept_folder(_key(tower, systems.teacher, task))
        if not (folder / _FILE).is_file():
            with staged_folder(folder) as staging:
                _write(staging / _FILE, diagnose(tower, task, teacher))
        diagnoses[tower.name] = Diagnosis(**read_json(folder / _FILE))
    return diagnoses


def perturbed_rows(judged: JudgedSet, task: Task) -> np.ndarray:
    """Rows of the queries of a judged set that are perturbed; none where they are fewer than MIN_QUERIES."""
    rows = drawn_rows(len(judged.query_ids), PERTURBED_QUERIES, task.params.seed)
    return rows if len(rows) >= MIN_QUERIES else rows[:0]


def diagnose(tower: Teacher | Student, task: Task, teacher: Result) -> Diagnosis:
    """Measure one tower over the index of its release."""
    by_field: dict[str, dict[str, Any]] = {field.name: {} for field in fields(Diagnosis)}
    for judged in task.test_sets():
        for name, figures in _of_set(tower, judged, task, teacher.embeddings[judged.dataset]).items():
            if figures:
                by_field[name][judged.dataset] = figures
    return Diagnosis(**by_field)


def _of_set(tower: Teacher | Student, judged: JudgedSet, task: Task, teacher_vectors: np.ndarray) -> dict[str, Any]:
    """Each field of a diagnosis on one judged set; `teacher_vectors` are the teacher's embeddings of its queries."""
    seed, release = task.params.seed, tower.release
    vectors = tower.encode(judged.texts) if isinstance(tower, Student) else teacher_vectors
    nearest = _nearest(tower, judged, teacher_vectors)
    sample = drawn_rows(len(vectors), _EFFORT_QUERIES, seed)
    effort = measure_effort(release, _select_queries(judged, sample), vectors[sample])
    figures: dict[str, Any] = {
        "perturbed": _perturbed(dense_search(remembering(tower.encode), release), tower.name, judged, task, exact=True),
        "effort": effort.as_dict() if effort else {},
        "codes": _codes(tower, judged, vectors, seed),
    }
    if not isinstance(tower, Student):
        return figures | {"space": measure_space(vectors, seed).as_dict()}
    hits = _nearest(tower, judged, vectors)
    if fusion := release.fusion(judged.dataset):
        dense, lexical = dense_search(tower.encode, release, "ann"), release.lexical(judged.dataset)
        served = fused_search(dense, lambda _, texts, k: lexical.search(texts, k), {judged.dataset: fusion})
        figures["perturbed_served"] = _perturbed(served, f"{tower.name} as served", judged, task)
    return figures | {
        "space": measure_space(vectors, seed, teacher_vectors, nearest, hits).as_dict(),
        "proposition": _proposition(tower, judged, nearest, teacher_vectors, vectors, seed),
    }


def _nearest(tower: Teacher | Student, judged: JudgedSet, vectors: np.ndarray) -> list[list[str]]:
    """Ids of the NEIGHBOURS documents nearest to each query."""
    threads = torch.get_num_threads()

    def search(k: int) -> tuple[np.ndarray, list[list[str]]]:
        return tower.release.search(judged.dataset, vectors, k, "flat", threads)

    return other_hits(judged, judged.query_ids, search, NEIGHBOURS)[1]


def _perturbed(
    search: Search, name: str, judged: JudgedSet, task: Task, *, exact: bool = False
) -> dict[str, list[float]]:
    rows, seed = perturbed_rows(judged, task), task.params.seed
    return {
        kind: score(f"{name}, {kind}", search, perturbed_set(judged, rows, kind, seed), NEIGHBOURS, exact=exact)
        .values[NDCG]
        .tolist()
        for kind in PERTURBATIONS
        if len(rows)
    }


def _proposition(
    tower: Student,
    judged: JudgedSet,
    nearest: list[list[str]],
    teacher_vectors: np.ndarray,
    vectors: np.ndarray,
    seed: int,
) -> dict[str, float]:
    """Over judged documents, the teacher's nearest, and as many that are drawn from all."""
    ids = tower.release.documents(judged.dataset).ids
    random_rows = np.random.default_rng(seed).integers(0, len(ids), (len(nearest), NEIGHBOURS))
    extra_docs = [[*hits, *(ids[row] for row in rows)] for hits, rows in zip(nearest, random_rows, strict=True)]
    pairs = judged_pairs(judged, extra_docs)
    rows = document_rows(tower.release, judged.dataset, pairs.doc_ids)
    is_indexed = rows >= 0
    queries, relevant = pairs.queries[is_indexed], pairs.relevant[is_indexed]
    if not len(relevant):
        return {}
    theirs, ours = comparable(teacher_vectors, vectors)
    documents = partial(_documents, tower, judged.dataset, rows[is_indexed])
    return measure_proposition(theirs, ours, queries, documents, relevant).as_dict()


def _documents(tower: Student, dataset: str, rows: np.ndarray, part: slice) -> np.ndarray:
    return document_vectors(tower.release, dataset, rows[part])


def _codes(tower: Teacher | Student, judged: JudgedSet, vectors: np.ndarray, seed: int) -> dict[str, list[float]]:
    codes = read_codes(tower.release, judged.dataset, seed)
    if codes is None:
        return {}
    relevant = [[doc for doc, grade in judged.qrels[query].items() if grade >= judged.relevant_from]
                for query in judged.query_ids]  # fmt: skip
    rows = iter(document_rows(tower.release, judged.dataset, [doc for docs in relevant for doc in docs]).tolist())
    relevant_rows = [[row for row in (next(rows) for _ in docs) if row >= 0] for docs in relevant]
    return measure_codes(codes, judged, relevant_rows, vectors) if any(relevant_rows) else {}


def _select_queries(judged: JudgedSet, rows: np.ndarray) -> JudgedSet:
    return replace(judged, query_ids=[judged.query_ids[row] for row in rows], texts=[judged.texts[row] for row in rows])


def _key(tower: Teacher | Student, teacher: Teacher, task: Task) -> str:
    """What a diagnosis depends on; the teacher's embeddings are those of its content."""
    tests = [asdict(item) for item in task.test_sets()]
    code = code_digest("steps.evaluate.diagnosis")
    return key_of(
        "diagnosis", tower.name, tower.content, teacher.content, tests, PERTURBED_QUERIES, task.params.seed, code
    )


def _write(path: Path, diagnosis: Diagnosis) -> None:
    write_json(path, asdict(diagnosis))
