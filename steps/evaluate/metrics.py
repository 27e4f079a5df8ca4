"""All that follows from what was measured of each system, as `reports/metrics.json` has it.

Its keys are stable: DVC, MLflow and other tools compare them over time. `<model>` is bm25, teacher, a student, or what
evaluate.earlier_towers (base, round_0, ...), evaluate.fused (teacher+bm25, 2l+bm25, ...) and evaluate.rerankers add.
An interval is `ci95_low, ci95_high`, a 95 % bootstrap over queries; a paired test `p_value, wins, ties, losses`, a
two-sided paired t-test of nDCG@10 and the queries on which the first one is better, equal and worse.

datasets.<set>.<model>.<measure>: mean over the test queries of nDCG@10 and what else evaluate.measures names, by
  ir-measures' names; Answer@k only of data sets with answers, AUC only of those with judged pairs of both kinds
datasets_dev: the same for the dev queries, where a data set has any
as_one.<name>.<model>.<measure>, as_one_dev: means over data sets that count as one (cqadupstack) in means over sets
retention.<student>.mean_of_ratios, ci95_low, ci95_high: mean over data sets of student / teacher, test nDCG@10; 1.0 is
  as good. As all that names no other system, of encoders alone. Data sets where the teacher has 0 are left out here, in
  retention_by_set and in verdict. .ratio_of_means: of the means over data sets. .worst: the data set where it is least
retention_by_set.<set>.<student>.ratio, ci95_low, ci95_high: the same of one data set
shares.<set>.<model>.ratio, ci95_low, ci95_high: of every model but the teacher, resampled together
served.<student>: the fields of retention, of what its release answers: fused with BM25 where `fused` says carried
served.<model>.p50_ms: of the teacher and students, text to embedding, or, where the release of any student fuses, text
  to hits over the index that serves, on the slowest data set
verdict.<set>.<student>.answer: may it, as served, replace the teacher, by test nDCG@10: yes, no, cannot tell
  .change, low, high, queries: student / teacher - 1, its one-sided bounds with the confidence of the settings (high
  corrected by Bonferroni for several data sets); yes from low = -margin on, no if high is below that
  .enough: queries that would show a yes with a chance of 80 %; null: none would
lexical.<set>: the same fields of BM25 alone
like_for_like.<set>.<student>.alone, both: where a student's release adds BM25, the same fields of encoders alone, and
  with BM25 beside the teacher too (where that was measured)
seeds.<student>.others, mean, sd: of students that differ in their seed alone, by the first: the others' names, mean and
  standard deviation of all their mean_of_ratios
significance.<set>.<student>: paired test, student against teacher
against_teacher.<set>.<student>.<measure>.difference, p_value, p_bootstrap, p_holm: student less teacher on test
  queries; paired t-test, paired bootstrap (no key below 30 queries), and the t-test adjusted by Holm for the measure's
  family: every student, and <student>+bm25 where its release fuses, on every data set
gain.<set>.<tower>.difference and paired test, gain_dev: mean nDCG@10 of the teacher less that of what it was before
gain_overall.<tower>.difference, p_value: mean of the difference over data sets, on dev, or on test where there are no
  dev queries; test that it is 0, data sets counting alike
latency.<model>.p50_ms, p99_ms, qps: of teacher and students, text to embedding, one query at a time, one thread,
  milliseconds of the processor (what neighbours take from it does not count); queries per second in batches, one thread
sizes.<model>.bytes: query side on disk; no key for a teacher behind an API
fused.<set>.<dense>.fusion, told: how the teacher or a student is fused with BM25
  .carried, bytes: whether the release answers so; size of the BM25 index that it carries, or 0
  .dev.queries, dense, fused, p_value, wins: what dev queries said when they chose it: nDCG@10 without and with it, and
  a randomisation test that allows for all that could have been chosen; null: there are none
  .against_dense, against_bm25: on test, mean difference of nDCG@10 and paired test
  .p50_ms, encode_ms, search_ms, bm25_ms, fusion_ms: median text to hits, over the index that serves, one query at a
  time, one thread, and of each part
slices.<set>.<slice>.queries: test queries of a kind, 20 or more (slicing.py); slices overlap
  .ndcg.<model>: their mean nDCG@10 by the teacher and each student, and by <student>+bm25 where its release fuses, then
  by teacher+bm25 too. .retention.<model>.ratio, ci95_low, ci95_high: model / teacher; no key where the teacher has 0
<figure>: of each of steps/evaluate/figures, such as perturbed: see its class; {} for an analysis that evaluate.analyses
  does not name
queries.<set>.test, dev: evaluated queries
choice.budget_ms, over_budget.<student>: evaluate.budget_ms, 0 = none; p50 in milliseconds of those that it leaves out
  .student, p50_ms, ndcg: the fastest student within it that is no worse than the best, its latency and its mean nDCG@10
  over data sets, both as in served, on dev, or on test where there are no dev queries; null: none is within it, or
  (ndcg) not judged. .reason: why it, in words
  .best, margin, confidence: the best student within it, and by what the others are held against it
  .bounds.<student>: bound of its change against the best, a share of nDCG@10, on the data set where it is least; from
  -margin on a faster one may be chosen; -1 where too few queries bound nothing, 0 where the best has none
  .alike.<student>.p_value, p50_ms: faster ones that cannot be told from the chosen one by a paired t-test
  .runner_up, runner_up_p50_ms, runner_up_ndcg: the best, where a faster one is chosen, else the next best; null: none
  .difference, p_value, test_difference, test_p_value: how far the runner-up is behind, below 0 if it is ahead;
  paired t-test; the same on test, for readers: nothing is chosen by it; null: dev did not decide
  .replacing: students within the budget that can replace the teacher; the choice is one of them, if there are any
  .overlap, runner_up_overlap: only where nothing is judged: mean overlap with the teacher's top ten, which decided
audit.checked_texts, evaluation_queries, leaks: the leak audit; a leak fails the stage, so leaks is 0
releases.<student>: checksum of the manifest of the release that was measured
settings.version, seed, throughput_batch, rerank_depth, ignore_identical_ids, min_relevance.<set>, margin, confidence:
  the version of this schema, and what figures depend on; margin and confidence are those of promote.policy

Numbers only, but for the names in `choice`, `fused`, `like_for_like`, `releases`, `seeds` and `verdict`, and the knobs
in `effort`: no dates or machine facts, so that equal results are equal files apart from timings and, where these
decide, the choice.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from steps.core.measures import UNCUT, joint_means, weights
from steps.core.tables import SCHEMAS
from steps.evaluate.cache import Measurements
from steps.evaluate.choice import CHOICE_MARGIN, JudgedOn, choose, compare_on_test, ranked
from steps.evaluate.comparing import compare, figures, retention
from steps.evaluate.figures.agreement import agreement
from steps.evaluate.figures.base import by_data_set
from steps.evaluate.gains import as_served, fusion_gains, gains, served_ms, significance
from steps.evaluate.latency import THROUGHPUT_BATCH
from steps.evaluate.measuring import Result, Task
from steps.evaluate.params import AS_ONE, BOOTSTRAP_SAMPLES
from steps.evaluate.systems import BM25, TEACHER, Systems, fused_name
from steps.evaluate.verdict import like_for_like, replacing, verdicts
from steps.retrieval.noninferiority import NonInferiority

Metrics = dict[str, Any]
VERSION = 4  # 2 had no seeds, and raw scores' label terms in geometry; 1 had MRR@10, MAP@1000 and Recall@k


@dataclass(frozen=True)
class Evaluation:
    """What is reported. `best` is the choice, or the best student where the budget leaves none."""

    metrics: Metrics
    best: str
    served: Mapping[str, Result]
    """The students as their releases serve them."""


def compose(
    measurements: Measurements, systems: Systems, task: Task, audit: Mapping[str, int], rule: NonInferiority
) -> Evaluation:
    """All that the measurements amount to by the gate's `rule`, but for slices, figures that measure, and seeds."""
    params, results, latencies = task.params, measurements.results, measurements.latencies
    students = [system.name for system in systems.students]
    teacher, alone = results[TEACHER], {name: results[name] for name in students}
    served = {name: as_served(name, results) for name in students}
    released = {fused_name(name): results[fused_name(name)] for name in students if served[name] is not alone[name]}
    times, reference = served_ms(results, latencies, students), teacher.ndcg("test")
    verdict = verdicts({name: result.ndcg("test") for name, result in served.items()}, reference, rule)
    lexical = verdicts({BM25: results[BM25].ndcg("test")}, reference, rule) if BM25 in results else {}
    choice, best = _choose(teacher, served, times, task, rule, replacing(verdict))
    retained, by_set = _retentions(teacher, alone, params.seed)
    retained_served, _ = _retentions(teacher, served, params.seed)
    means: dict[str, dict[str, dict[str, dict[str, float]]]] = {"test": defaultdict(dict), "dev": defaultdict(dict)}
    for model, result in results.items():
        for item in result.scored:
            means[item.judged.split][item.judged.dataset][model] = item.means()
    queries: dict[str, dict[str, int]] = defaultdict(dict)
    for judged in task.judged:
        queries[judged.dataset][judged.split] = len(judged.query_ids)
    metrics: Metrics = {
        "datasets": means["test"],
        "datasets_dev": means["dev"],
        "as_one": joint_means(means["test"], AS_ONE),
        "as_one_dev": joint_means(means["dev"], AS_ONE),
        "retention": retained,
        "retention_by_set": by_set,
        "shares": _shares(results, params.seed),
        "served": {name: {"p50_ms": value} | retained_served.get(name, {}) for name, value in times.items()},
        "verdict": verdict,
        "lexical": {dataset: row[BM25] for dataset, row in lexical.items()},
        "like_for_like": like_for_like(results, students, reference, rule),
        "significance": {
            dataset: {name: compare(result.ndcg("test")[dataset], values) for name, result in alone.items()}
            for dataset, values in teacher.ndcg("test").items()
        },
        "against_teacher": significance(teacher, alone | released, BOOTSTRAP_SAMPLES, params.seed),
        **gains(teacher, {system.name: results[system.name] for system in systems.earlier if system.name in results}),
        "latency": {model: asdict(value) for model, value in latencies.items()},
        "choice": choice,
        "sizes": {model: {"bytes": result.bytes} for model, result in results.items() if result.bytes is not None},
        "indexes": dict(teacher.indexes),
        "serving": by_data_set({model: result.serving for model, result in results.items()}),
        "fused": fusion_gains(results),
        "closeness": by_data_set({
            model: {
                dataset: {name: float(values.mean()) for name, values in row.items()}
                for dataset, row in result.closeness.items()
            }
            for model, result in results.items()
        }),
        "closeness_texts": {item.dataset: item.parts for item in task.texts},
        "agreement": agreement(measurements.runs, TEACHER, students),
        "queries": queries,
        "audit": dict(audit),
        "releases": {student.name: student.content for student in systems.students},
        "settings": {
            "version": VERSION,
            "seed": params.seed,
            "throughput_batch": THROUGHPUT_BATCH,
            "rerank_depth": params.rerank_depth,
            "ignore_identical_ids": int(params.ignore_identical_ids),
            "min_relevance": dict(params.min_relevance),
            "margin": rule.margin,
            "confidence": rule.confidence,
        },
    }  # fmt: skip
    return Evaluation(metrics, best, served)


def _choose(
    teacher: Result,
    served: Mapping[str, Result],
    times: Mapping[str, float],
    task: Task,
    rule: NonInferiority,
    can_replace: Sequence[str],
) -> tuple[dict[str, Any], str]:
    """`choice` of metrics.json, and the chosen student, or else the best one."""
    judged_on, quality = _quality(served)
    shares = weights(list(teacher.ndcg(judged_on)), AS_ONE) if judged_on != "nothing" else None
    p50_ms = {name: times[name] for name in served}
    allowed = rule.model_copy(update={"margin": CHOICE_MARGIN})
    choice = choose(quality, p50_ms, task.params.budget_ms, allowed, judged_on, shares, can_replace)
    if judged_on == "dev" and choice["runner_up"]:
        ours, theirs = (list(served[choice[name]].ndcg("test").values()) for name in ("student", "runner_up"))
        choice |= compare_on_test(ours, theirs, weights(list(teacher.ndcg("test")), AS_ONE))
    return choice, choice["student"] or ranked(quality, p50_ms, shares)[0]


def _quality(students: Mapping[str, Result]) -> tuple[JudgedOn, dict[str, list[np.ndarray]]]:
    """What students are chosen by, an array a data set: nDCG@10 on dev, else on test, else closeness to the teacher."""
    splits: tuple[JudgedOn, ...] = ("dev", "test")
    for split in splits:
        sets = {name: list(result.ndcg(split).values()) for name, result in students.items()}
        if all(sets.values()):
            return split, sets
    return "nothing", {
        name: [close["overlap"] for close in result.closeness.values()] for name, result in students.items()
    }


def _retentions(
    teacher: Result, students: Mapping[str, Result], seed: int
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, dict[str, float]]]]:
    """`[student]` over data sets, and `[data set][student]`, on test nDCG@10; {} where nothing is judged."""
    reference = teacher.ndcg("test")
    overall, by_set = {}, {}
    for name, student in students.items() if reference else ():
        scores = student.ndcg("test")
        paired = {dataset: (scores[dataset], values) for dataset, values in reference.items()}
        overall[name], by_set[name] = retention(paired, BOOTSTRAP_SAMPLES, seed, AS_ONE)
    return overall, by_data_set(by_set)


def _shares(results: Mapping[str, Result], seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """`[data set][system]`: its share of the teacher's test nDCG@10 with an interval (`comparing.figures`)."""
    scores = by_data_set({name: result.ndcg("test") for name, result in results.items()})
    return {
        dataset: figures(scores[dataset], BOOTSTRAP_SAMPLES, seed)["retention"]
        for dataset in results[TEACHER].ndcg("test")
    }


def per_query_table(results: Mapping[str, Result]) -> pa.Table:
    """Every measured value: one row a query, model and measure."""
    schema = SCHEMAS["per_query"]
    chunks = [schema.empty_table()]
    for model, item in [(name, item) for name in sorted(results) for item in results[name].scored]:
        for measure in sorted(item.values.keys() - {UNCUT}):
            rows = np.flatnonzero(~np.isnan(item.values[measure]))
            names = {"dataset": item.judged.dataset, "model": model, "split": item.judged.split, "measure": measure}
            columns = {name: [value] * len(rows) for name, value in names.items()}
            ids = [item.judged.query_ids[row] for row in rows]
            chunks.append(pa.table(columns | {"query_id": ids, "value": item.values[measure][rows]}, schema=schema))
    return pa.concat_tables(chunks)
