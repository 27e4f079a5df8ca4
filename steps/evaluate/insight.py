"""Where students lose, and why: slices of the test queries, perturbed queries, geometry, and cases to read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from steps.core.judged import JudgedSet
from steps.core.tables import table_from_rows
from steps.core.texts import words
from steps.evaluate.cache import Measurements
from steps.evaluate.cases import Case, read_cases
from steps.evaluate.comparing import figures
from steps.evaluate.composition import Evaluation
from steps.evaluate.diagnosis import Diagnosis, diagnose_all, perturbed_rows
from steps.evaluate.gains import fused_name
from steps.evaluate.measuring import Task
from steps.evaluate.params import BOOTSTRAP_SAMPLES, EvaluateParams
from steps.evaluate.perturbations import PERTURBATIONS
from steps.evaluate.served import fused_sets
from steps.evaluate.slicing import QueryFacts, Slice, count_searches, count_words, slice_queries, training_texts
from steps.evaluate.systems import TEACHER, Systems

EXAMPLES = 5  # dev queries shown on which the best student loses most, and as many on which it gains most


@dataclass(frozen=True)
class Insight:
    """`metrics` to go with the others, the slices' queries as a table, cases, and what was left out, a line each."""

    metrics: dict[str, Any]
    slices: pa.Table
    cases: Sequence[Case]
    notes: Sequence[str]


def look_closer(
    ingest: Path,
    embed: Path,
    generate: Path,
    systems: Systems,
    task: Task,
    measurements: Measurements,
    evaluation: Evaluation,
) -> Insight:
    """All is of encoders; slices and changed queries of students as served too, and cases of these alone.

    Where a student's release fuses, slices have the teacher with BM25 as well, if it was measured. Folders are earlier
    stages'.
    """
    tests, params = task.test_sets(), task.params
    facts = read_query_facts(ingest, embed, generate, tests, task.user_slices)
    sliced = [part for judged in tests for part in slice_queries(judged, facts, params.slices)]
    diagnosed = diagnose_all(systems, task, measurements.results[TEACHER])
    towers = {name: measurements.results[name] for name in diagnosed}
    values = {name: result.ndcg("test") for name, result in towers.items()}
    carried = {name: sets for name in evaluation.served if (sets := fused_sets(name, measurements.results))}
    if carried and fused_name(TEACHER) in measurements.results:
        carried[TEACHER] = set.union(*carried.values())
    fused = {
        fused_name(name): _only(measurements.results[fused_name(name)].ndcg("test"), sets)
        for name, sets in carried.items()
    }
    return Insight(
        metrics={
            "slices": slice_figures(values | fused, sliced, params),
            "perturbed": perturbed_figures(diagnosed, values | fused, task),
            "proposition": _by_dataset(diagnosed, "proposition"),
            "space": _by_dataset(diagnosed, "space"),
            "effort": _by_dataset(diagnosed, "effort"),
            "semantic_ids": _codes(diagnosed),
        },
        slices=slice_table(tests, sliced),
        cases=read_cases(ingest, measurements.results[TEACHER], evaluation.served[evaluation.best], EXAMPLES),
        notes=_left_out(tests, facts),
    )


def read_query_facts(
    ingest: Path, embed: Path, generate: Path, tests: Sequence[JudgedSet], user_slices: Mapping[str, Sequence[str]]
) -> QueryFacts:
    """What training texts, log and a user's table say of the test queries."""
    vocabulary = {word for judged in tests for text in judged.texts for word in words(text)}
    return QueryFacts(
        training=count_words(vocabulary, training_texts(ingest, embed, generate)) if vocabulary else {},
        searches=count_searches(ingest, [query for judged in tests for query in judged.query_ids]),
        user_slices=user_slices,
    )


def _only(values: Mapping[str, np.ndarray], sets: Collection[str]) -> dict[str, np.ndarray]:
    return {dataset: scores for dataset, scores in values.items() if dataset in sets}


def _left_out(tests: Sequence[JudgedSet], facts: QueryFacts) -> list[str]:
    """A line where some data sets have no slices by how often a query is asked."""
    names = [
        judged.dataset for judged in tests if len({facts.searches.get(query, 0) for query in judged.query_ids}) < 2
    ]
    if not names:
        return []
    has = "has no search log" if len(names) == 1 else "have no search log"
    return [f"{', '.join(names)} {has}, so results are not split into frequent and rare queries"]


def slice_figures(
    values: Mapping[str, Mapping[str, np.ndarray]], sliced: Sequence[Slice], params: EvaluateParams
) -> dict[str, dict[str, Any]]:
    """`[data set][slice]`: see `ratios.figures`; `values` by system, the teacher among them, and data set."""
    named: dict[str, dict[str, Any]] = {}
    for part in sliced:
        scores = {name: of[part.dataset][part.rows] for name, of in values.items() if part.dataset in of}
        named.setdefault(part.dataset, {})[part.name] = figures(scores, BOOTSTRAP_SAMPLES, params.seed)
    return named


def perturbed_figures(
    diagnosed: Mapping[str, Diagnosis], values: Mapping[str, Mapping[str, np.ndarray]], task: Task
) -> dict[str, dict[str, Any]]:
    """`[data set][perturbation]`: see `ratios.figures`, and `unchanged`, nDCG@10 by model on the same queries.

    `values`: nDCG@10 of all test queries, by model and data set; of students that are released with BM25 also fused.
    """
    named: dict[str, dict[str, Any]] = {}
    for judged in task.test_sets():
        rows = perturbed_rows(judged, task)
        for kind in PERTURBATIONS if len(rows) else ():
            scores = {
                name: np.array(diagnosis.perturbed[judged.dataset][kind]) for name, diagnosis in diagnosed.items()
            }
            scores |= {
                fused_name(name): np.array(diagnosis.perturbed_served[judged.dataset][kind])
                for name, diagnosis in diagnosed.items()
                if judged.dataset in diagnosis.perturbed_served
            }
            named.setdefault(judged.dataset, {})[kind] = figures(scores, BOOTSTRAP_SAMPLES, task.params.seed) | {
                "unchanged": {name: float(values[name][judged.dataset][rows].mean()) for name in scores}
            }
    return named


def slice_table(tests: Sequence[JudgedSet], sliced: Sequence[Slice]) -> pa.Table:
    """The table `slices`: a row for each query of each slice."""
    ids = {judged.dataset: judged.query_ids for judged in tests}
    return table_from_rows(
        "slices",
        (
            {"query_id": ids[part.dataset][row], "dataset": part.dataset, "slice": part.name}
            for part in sliced
            for row in part.rows
        ),
    )


def _by_dataset(diagnosed: Mapping[str, Diagnosis], field: str) -> dict[str, dict[str, Any]]:
    """One field of each diagnosis as `[data set][model]`."""
    named: dict[str, dict[str, Any]] = {}
    for model, diagnosis in diagnosed.items():
        for dataset, value in getattr(diagnosis, field).items():
            named.setdefault(dataset, {})[model] = value
    return named


def _codes(diagnosed: Mapping[str, Diagnosis]) -> dict[str, dict[str, Any]]:
    """`[data set][model][recall or documents][number of codes]`."""
    return {
        dataset: {
            model: {name: {str(count): value for count, value in enumerate(row, 1)} for name, row in codes.items()}
            for model, codes in models.items()
        }
        for dataset, models in _by_dataset(diagnosed, "codes").items()
    }
