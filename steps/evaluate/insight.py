"""Where students lose, and why: slices of the test queries, perturbed queries, geometry, and cases to read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.files import read_json, write_json
from steps.core.code import code_digest
from steps.core.corpus import corpus_batches
from steps.core.judged import JudgedSet
from steps.core.measures import NDCG, UNCUT
from steps.core.tables import table_from_rows
from steps.core.texts import words
from steps.evaluate.cache import Measurements, kept_folder, key_of
from steps.evaluate.comparing import figures as shares_of
from steps.evaluate.figures import every_figure, measured_figures
from steps.evaluate.figures.base import EvaluatedTower, Figure, Measured
from steps.evaluate.gains import fused_sets
from steps.evaluate.judging import Folders
from steps.evaluate.measuring import Result, Task
from steps.evaluate.metrics import Evaluation
from steps.evaluate.params import BOOTSTRAP_SAMPLES, EvaluateParams
from steps.evaluate.scoring import Scored
from steps.evaluate.slicing import QueryFacts, Slice, count_searches, count_words, slice_queries, training_texts
from steps.evaluate.systems import TEACHER, Student, Systems, Teacher, digest, fused_name

EXAMPLES = 5  # dev queries shown on which the best student loses most, and as many on which it gains most
_START = 220  # characters of a document
Way = Literal["lost", "gained"]


@dataclass(frozen=True)
class CaseQuery:
    """A query, its nDCG@10 by both, and the rank at which each has the first relevant document; None: not found."""

    dataset: str
    row: int
    way: Way
    teacher: float
    student: float
    teacher_rank: int | None
    student_rank: int | None


@dataclass(frozen=True)
class Hit:
    """A document in a list of hits; `start` is how its content begins, `relevant` None where nobody judged it."""

    doc_id: str
    title: str
    start: str
    relevant: bool | None


@dataclass(frozen=True)
class Case:
    """A query with the best hits of both."""

    asked: CaseQuery
    text: str
    teacher: Sequence[Hit]
    student: Sequence[Hit]


@dataclass(frozen=True)
class Insight:
    """`metrics` to go with the others, the slices' queries as a table, cases, and what was left out, a line each."""

    metrics: dict[str, Any]
    slices: pa.Table
    cases: Sequence[Case]
    notes: Sequence[str]
    measured: Mapping[str, Measured]
    """What was measured for each figure, by key."""


def look_closer(
    folders: Folders, systems: Systems, task: Task, measurements: Measurements, evaluation: Evaluation
) -> Insight:
    """All is of encoders; slices and changed queries of students as served too, and cases of these alone.

    Where a student's release fuses, slices have the teacher with BM25 as well, if it was measured.
    """
    tests, params, results = task.test_sets(), task.params, measurements.results
    facts = read_query_facts(folders, tests, task.user_slices)
    sliced = [part for judged in tests for part in slice_queries(judged, facts, params.slices)]
    chosen = measured_figures(params)
    measured = measure_figures(chosen, systems, task, results[TEACHER])
    towers = [TEACHER, *(student.name for student in systems.students)] if tests else []
    values = {name: results[name].ndcg("test") for name in towers}
    carried = {name: sets for name in evaluation.served if (sets := fused_sets(name, results))}
    if carried and fused_name(TEACHER) in results:
        carried[TEACHER] = set.union(*carried.values())
    for name, sets in carried.items():
        both = results[fused_name(name)].ndcg("test")
        values[fused_name(name)] = {dataset: scores for dataset, scores in both.items() if dataset in sets}
    keys = [figure.key() for figure in every_figure() if figure.analysis]
    return Insight(
        metrics={
            "slices": slice_figures(values, sliced, params),
            **{key: {} for key in keys},
            **{figure.key(): figure.merge(measured[figure.key()], values, params.seed) for figure in chosen},
        },
        slices=slice_table(tests, sliced),
        cases=read_cases(folders.ingest, results[TEACHER], evaluation.served[evaluation.best], EXAMPLES),
        notes=_left_out(tests, facts),
        measured=measured,
    )


def read_query_facts(
    folders: Folders, tests: Sequence[JudgedSet], user_slices: Mapping[str, Sequence[str]]
) -> QueryFacts:
    """What training texts, log and a user's table say of the test queries."""
    vocabulary = {word for judged in tests for text in judged.texts for word in words(text)}
    return QueryFacts(
        training=count_words(vocabulary, training_texts(folders)) if vocabulary else {},
        searches=count_searches(folders.ingest, [query for judged in tests for query in judged.query_ids]),
        user_slices=user_slices,
    )


def _left_out(tests: Sequence[JudgedSet], facts: QueryFacts) -> list[str]:
    """A line where some data sets have no slices by how often a query is asked."""
    counts = {judged.dataset: {facts.searches.get(query, 0) for query in judged.query_ids} for judged in tests}
    names = [dataset for dataset, searches in counts.items() if len(searches) < 2]
    has = "has" if len(names) == 1 else "have"
    line = f"{', '.join(names)} {has} no search log, so results are not split into frequent and rare queries"
    return [line] if names else []


def slice_figures(
    values: Mapping[str, Mapping[str, np.ndarray]], sliced: Sequence[Slice], params: EvaluateParams
) -> dict[str, dict[str, Any]]:
    """`[data set][slice]`: see `comparing.figures`; `values` by system, the teacher among them, and data set."""
    named: dict[str, dict[str, Any]] = {}
    for part in sliced:
        scores = {name: of[part.dataset][part.rows] for name, of in values.items() if part.dataset in of}
        named.setdefault(part.dataset, {})[part.name] = shares_of(scores, BOOTSTRAP_SAMPLES, params.seed)
    return named


def slice_table(tests: Sequence[JudgedSet], sliced: Sequence[Slice]) -> pa.Table:
    """The table `slices`: a row for each query of each slice."""
    ids = {judged.dataset: judged.query_ids for judged in tests}
    rows = [
        {"query_id": ids[part.dataset][row], "dataset": part.dataset, "slice": part.name}
        for part in sliced
        for row in part.rows
    ]
    return table_from_rows("slices", rows)


def measure_figures(chosen: Sequence[Figure], systems: Systems, task: Task, teacher: Result) -> dict[str, Measured]:
    """What each figure measures of the teacher and every student, by its key; `teacher` is the teacher's result.

    Nothing where nothing is judged. What is known is not measured again: each is kept below SLIMTOWER_CACHE/evaluate.
    """
    measured: dict[str, dict[str, dict[str, Any]]] = {figure.key(): {} for figure in chosen}
    tests, seed, reference = task.test_sets(), task.params.seed, systems.teacher.content
    queries = digest([asdict(judged) for judged in tests])
    towers: list[Teacher | Student] = [systems.teacher, *systems.students] if tests else []
    for tower in towers:
        on_sets = [EvaluatedTower(tower, judged, teacher.embeddings[judged.dataset], seed) for judged in tests]
        for figure in chosen:
            code = code_digest(type(figure).__module__)
            key = key_of(figure.key(), tower.name, tower.content, reference, queries, seed, code)
            path = kept_folder(key) / "figure.json"
            if not path.is_file():
                values = {evaluated.judged.dataset: figure.measure(evaluated) for evaluated in on_sets}
                write_json(path, {dataset: value for dataset, value in values.items() if value is not None})
            if by_set := read_json(path):
                measured[figure.key()][tower.name] = by_set
    return dict(measured)


def choose_cases(teacher: Sequence[Scored], student: Sequence[Scored], count: int) -> list[CaseQuery]:
    """The `count` queries with the largest drop of nDCG@10, then the `count` with the largest gain; ties by query id.

    Both sequences hold the same judged sets in order.
    """
    entries: dict[Way, list[tuple[float, str, CaseQuery]]] = {"lost": [], "gained": []}
    for ours, theirs in zip(student, teacher, strict=True):
        judged, drop = ours.judged, theirs.values[NDCG] - ours.values[NDCG]
        for row in np.flatnonzero(drop).tolist():
            way: Way = "lost" if drop[row] > 0 else "gained"
            teacher_ndcg, student_ndcg = (float(item.values[NDCG][row]) for item in (theirs, ours))
            teacher_rank, student_rank = (_rank(item.values[UNCUT][row]) for item in (theirs, ours))
            query = CaseQuery(judged.dataset, row, way, teacher_ndcg, student_ndcg, teacher_rank, student_rank)
            entries[way].append((-abs(float(drop[row])), judged.query_ids[row], query))
    return [query for way in entries.values() for _, _, query in sorted(way, key=lambda entry: entry[:2])[:count]]


def read_cases(ingest: Path, teacher: Result, student: Result, count: int) -> list[Case]:
    """Cases among the dev queries, whose texts may be looked at without knowing the test; [] without any."""
    chosen = choose_cases(teacher.of_split("dev"), student.of_split("dev"), count)
    sets = {item.judged.dataset: item.judged for item in student.of_split("dev")}
    hits = [(teacher.best[query.dataset][query.row], student.best[query.dataset][query.row]) for query in chosen]
    texts = _documents(ingest, {doc_id for both in hits for ids in both for doc_id in ids})
    cases = []
    for query, both in zip(chosen, hits, strict=True):
        judged = sets[query.dataset]
        lists = (listed_hits(ids, judged, query.row, texts) for ids in both)
        cases.append(Case(query, judged.texts[query.row], *lists))
    return cases


def _documents(ingest: Path, doc_ids: set[str]) -> dict[str, tuple[str, str]]:
    ids, documents = pa.array(sorted(doc_ids), pa.string()), {}
    for batch in corpus_batches(ingest, ["doc_id", "title", "content"]) if doc_ids else ():
        for row in batch.filter(pc.is_in(batch["doc_id"], ids)).to_pylist():
            documents[row["doc_id"]] = (row["title"], _start(row["content"]))
    return documents


def listed_hits(doc_ids: Sequence[str], judged: JudgedSet, row: int, texts: Mapping[str, tuple[str, str]]) -> list[Hit]:
    """Hits of the query in this row, with titles and starts of `texts`."""
    grades = judged.qrels[judged.query_ids[row]]
    relevant = {doc_id: grade >= judged.relevant_from for doc_id, grade in grades.items()}
    return [Hit(doc_id, *texts.get(doc_id, ("", "")), relevant.get(doc_id)) for doc_id in doc_ids]


def _start(content: str) -> str:
    text = " ".join(content.split())
    return text if len(text) <= _START else text[:_START].rsplit(" ", 1)[0] + " …"


def _rank(reciprocal: float) -> int | None:
    return round(1 / reciprocal) if reciprocal > 0 else None
