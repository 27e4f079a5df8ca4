"""The choice, retention, comparisons, frontier and metrics: all that follows from what was measured of each system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from steps.core.measures import UNCUT
from steps.core.tables import SCHEMAS
from steps.evaluate.cache import Measurements
from steps.evaluate.choice import CHOICE_MARGIN, Choice, JudgedOn, choose, ranked
from steps.evaluate.comparing import Comparison, Retention, compare, figures, retention
from steps.evaluate.figures.agreement import agreement
from steps.evaluate.frontier import Point, frontier
from steps.evaluate.gains import as_served, gains, served_ms, significance
from steps.evaluate.measuring import Result, Task
from steps.evaluate.metrics import Metrics, assemble
from steps.evaluate.params import AS_ONE, BOOTSTRAP_SAMPLES, EvaluateParams
from steps.evaluate.systems import TEACHER, fused_name
from steps.evaluate.verdict import like_for_like, replacing, verdicts
from steps.retrieval.dataset_groups import weights
from steps.retrieval.noninferiority import NonInferiority


@dataclass(frozen=True)
class Evaluation:
    """What is reported. `best` is the choice, or the best student where the budget leaves none."""

    metrics: Metrics
    choice: Choice
    best: str
    points: Sequence[Point]
    served: Mapping[str, Result]
    """The students as their releases serve them."""


def compose(
    measurements: Measurements,
    students: Sequence[str],
    earlier: Sequence[str],
    task: Task,
    audit: Mapping[str, int],
    rule: NonInferiority,
) -> Evaluation:
    """All that the measurements amount to; `students` are in the order in which they are shown.

    `earlier`: the systems that the teacher was before; those that were not measured do not count. `rule`: the promotion
    gate's.
    """
    params, results = task.params, measurements.results
    teacher, alone = results[TEACHER], {name: results[name] for name in students}
    retained, compared = _against_teacher(teacher, alone, params)
    served = {name: as_served(name, results) for name in students}
    judged_on, quality = _quality(served)
    shares = weights(list(teacher.ndcg(judged_on)), AS_ONE) if judged_on != "nothing" else None
    times = served_ms(results, measurements.latencies, students)
    p50_ms = {name: times[name] for name in students}
    reference = teacher.ndcg_by_id("test")
    verdict = verdicts({name: result.ndcg_by_id("test") for name, result in served.items()}, reference, rule)
    allowed = rule.model_copy(update={"margin": CHOICE_MARGIN})
    choice = choose(quality, p50_ms, params.budget_ms, allowed, judged_on, shares, replacing(verdict))
    if judged_on == "dev" and choice.student and choice.runner_up:
        ours, theirs = (list(served[name].ndcg("test").values()) for name in (choice.student, choice.runner_up))
        choice = choice.with_test(ours, theirs)
    best = choice.student or ranked(quality, p50_ms, shares)[0]
    gained = gains(teacher, {name: results[name] for name in earlier if name in results})
    metrics = assemble(results, measurements.latencies, retained, compared, gained, choice, task, audit)
    released = {fused_name(name): results[fused_name(name)] for name in students if served[name] is not alone[name]}
    metrics |= {
        "against_teacher": significance(teacher, alone | released, BOOTSTRAP_SAMPLES, params.seed),
        "agreement": agreement(measurements.runs, TEACHER, students),
        "shares": _shares(results, params),
    }
    retentions, _ = _against_teacher(teacher, served, params)
    metrics["served"] = {
        name: {"p50_ms": value} | (retentions[name].as_dict() if name in retentions else {})
        for name, value in times.items()
    }
    metrics["verdict"] = verdict
    metrics["like_for_like"] = like_for_like(results, students, reference, rule)
    lexical = verdicts({"bm25": results["bm25"].ndcg_by_id("test")}, reference, rule) if "bm25" in results else {}
    metrics["lexical"] = {dataset: row["bm25"] for dataset, row in lexical.items()}
    metrics["settings"] |= {"margin": rule.margin, "confidence": rule.confidence}
    return Evaluation(
        metrics=metrics,
        choice=choice,
        best=best,
        points=frontier(measurements.latencies, retained, metrics),
        served=served,
    )


def _against_teacher(
    teacher: Result, students: Mapping[str, Result], params: EvaluateParams
) -> tuple[dict[str, Retention], dict[str, dict[str, Comparison]]]:
    """Retention by student, and the paired comparisons by data set and student, on test nDCG@10; {} without any."""
    reference = teacher.ndcg("test")
    if not reference:
        return {}, {}
    retained: dict[str, Retention] = {}
    compared: dict[str, dict[str, Comparison]] = {dataset: {} for dataset in reference}
    for name, student in students.items():
        scores = student.ndcg("test")
        paired = {dataset: (scores[dataset], values) for dataset, values in reference.items()}
        retained[name] = retention(paired, BOOTSTRAP_SAMPLES, params.seed, AS_ONE)
        for dataset, values in paired.items():
            compared[dataset][name] = compare(*values)
    return retained, compared


def _shares(results: Mapping[str, Result], params: EvaluateParams) -> dict[str, dict[str, dict[str, float]]]:
    """`[data set][system]`: its share of the teacher's test nDCG@10 with an interval (`comparing.figures`)."""
    values = {name: result.ndcg("test") for name, result in results.items()}
    return {
        dataset: figures(
            {name: scores[dataset] for name, scores in values.items() if dataset in scores},
            BOOTSTRAP_SAMPLES,
            params.seed,
        )["retention"]
        for dataset in values[TEACHER]
    }


def _quality(students: Mapping[str, Result]) -> tuple[JudgedOn, dict[str, list[np.ndarray]]]:
    """What students are chosen by, an array a data set: nDCG@10 on dev, else on test, else closeness to the teacher."""
    splits: tuple[JudgedOn, ...] = ("dev", "test")
    for split in splits:
        sets = {name: list(result.ndcg(split).values()) for name, result in students.items()}
        if all(sets.values()):
            return split, sets
    return "nothing", {
        name: [close.overlaps for close in result.closeness.values()] for name, result in students.items()
    }


def per_query_table(results: Mapping[str, Result]) -> pa.Table:
    """Every measured value: one row a query, model and measure."""
    schema = SCHEMAS["per_query"]
    chunks = []
    for model in sorted(results):
        for item in results[model].scored:
            judged = item.judged
            for measure in sorted(item.values.keys() - {UNCUT}):
                rows = np.flatnonzero(~np.isnan(item.values[measure]))
                count = len(rows)
                columns = {
                    "query_id": [judged.query_ids[row] for row in rows],
                    "dataset": [judged.dataset] * count,
                    "model": [model] * count,
                    "split": [judged.split] * count,
                    "measure": [measure] * count,
                    "value": item.values[measure][rows],
                }
                chunks.append(pa.table(columns, schema=schema))
    return pa.concat_tables(chunks) if chunks else schema.empty_table()
