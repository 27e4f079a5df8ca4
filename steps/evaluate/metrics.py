"""The schema of `reports/metrics.json`. Keys are stable: DVC, MLflow and other tools compare them over time.

    datasets.<set>.<model>.<measure>       mean over the test queries; model = bm25, teacher, a student's name, or (with
                                           evaluate.earlier_towers) what the teacher was before: base, round_0, ..., or
                                           (with evaluate.fused) a dense one fused with BM25: teacher+bm25, 2l+bm25, or
                                           one of evaluate.rerankers, which order the teacher's hits anew;
                                           measure = nDCG@10 and what else evaluate.measures names, by ir-measures'
                                           names; Answer@k only of data sets with answers, AUC-REL and AUC-SAT only of
                                           those with judged pairs of both kinds
    datasets_dev.<set>.<model>.<measure>   the same for the dev queries, where a data set has any
    as_one.<name>.<model>.<measure>, as_one_dev    means over data sets that count as one (cqadupstack), as all means
                                           over data sets do
    retention.<student>.mean_of_ratios     mean over data sets of student / teacher, test nDCG@10; 1.0 = as good. As
                                           all that names no other system, of encoders alone. Data sets where the
                                           teacher has 0 are left out here, in retention_by_set and in verdict
    retention.<student>.ratio_of_means     mean of the students over mean of the teachers
    retention.<student>.worst              the data set where it is least
    retention.<student>.ci95_low, ci95_high    bootstrap interval of mean_of_ratios over queries
    served.<student>.mean_of_ratios, ratio_of_means, worst, ci95_low, ci95_high    the same of what its release answers:
                                           fused with BM25 on the data sets where `fused` says carried
    served.<model>.p50_ms                  text to embedding, or, where the release of any student fuses, text to hits
                                           over the index that serves, on the slowest data set; teacher or a student
    verdict.<set>.<student>.answer         may it, as served, replace the teacher, by test nDCG@10: yes, no, cannot tell
    verdict.<set>.<student>.change, low, high, queries    student / teacher - 1, its one-sided bounds with the
                                           confidence of the settings (high corrected by Bonferroni for several data
                                           sets); yes from low = -margin on, no if high is below that
    verdict.<set>.<student>.enough         queries that would show a yes with a chance of 80 %; null: none would
    lexical.<set>                          the same fields of BM25 alone
    like_for_like.<set>.<student>.alone, both    where a student's release adds BM25, the verdict's figures of encoders
                                           alone, and with BM25 beside the teacher too (where that was measured)
    seeds.<student>.others, mean, sd       of students that differ in their seed alone, by the first: the others' names,
                                           mean and standard deviation of all their mean_of_ratios
    retention_by_set.<set>.<student>.ratio, ci95_low, ci95_high    the same of one data set
    shares.<set>.<model>.ratio, ci95_low, ci95_high    of every model but the teacher, resampled together
    significance.<set>.<student>.p_value   two-sided paired t-test of nDCG@10, student against teacher
    significance.<set>.<student>.wins, ties, losses    queries on which the student is better, equal, worse
    against_teacher.<set>.<student>.<measure>.difference, p_value, p_bootstrap, p_holm    student less teacher on test
                                           queries; paired t-test, paired bootstrap (no key below 30 queries), and the
                                           t-test adjusted by Holm for the measure's family: every student, and
                                           <student>+bm25 where its release fuses, on every data set
    gain.<set>.<tower>.difference, p_value     with evaluate.earlier_towers: mean test nDCG@10 of the teacher less that
                                           of what it was before (base, round_0, ...); two-sided paired t-test
    gain.<set>.<tower>.wins, ties, losses  queries on which the teacher is better, equal, worse
    gain_dev.<set>.<tower>                 the same for the dev queries
    gain_overall.<tower>.difference, p_value   mean of the difference over data sets, on dev, or on test where there are
                                           no dev queries; test that it is 0, data sets counting alike
    latency.<model>.p50_ms, p99_ms         text to embedding, one query at a time, one thread, milliseconds
    latency.<model>.qps                    queries per second in batches, one thread; model = teacher or a student
    sizes.<model>.bytes                    query side on disk; no key for a teacher behind an API
    fused.<set>.<dense>.fusion, told       with evaluate.fused: how the teacher or a student is fused with BM25
    fused.<set>.<dense>.carried, bytes     whether the release answers so; size of the BM25 index that it carries, or 0
    fused.<set>.<dense>.dev.queries, dense, fused, p_value, wins    what dev queries said when they chose it: nDCG@10
                                           without and with it, and a randomisation test that allows for all that could
                                           have been chosen; null: there are none
    fused.<set>.<dense>.against_dense, against_bm25    on test: mean difference of nDCG@10, p_value, wins, ties, losses
    fused.<set>.<dense>.p50_ms             text to hits, over the index that serves, one query at a time, one thread
    fused.<set>.<dense>.encode_ms, search_ms, bm25_ms, fusion_ms    median of each part
    slices.<set>.<slice>.queries           test queries of a kind, 20 or more (slicing.py); slices overlap
    slices.<set>.<slice>.ndcg.<model>      their mean nDCG@10 by the teacher and each student, and by
                                           <student>+bm25 where its release fuses, then by teacher+bm25 too
    slices.<set>.<slice>.retention.<model>.ratio, ci95_low, ci95_high    model / teacher of these means, bootstrap
                                           interval over the slice's queries; no key where the teacher has 0
    <figure>                               of each of steps/evaluate/figures, such as perturbed: see its class; {} for
                                           an analysis that evaluate.analyses does not name
    queries.<set>.test, dev                evaluated queries
    choice.budget_ms                       evaluate.budget_ms; 0 = none
    choice.student, p50_ms, ndcg           the fastest student within it that is no worse than the best, its latency and
                                           its mean nDCG@10 over data sets, both as in served, on dev, or on test where
                                           there are no dev queries; null: none is within it, or (ndcg) not judged
    choice.best, margin, confidence        the best student within it, and by what the others are held against it
    choice.bounds.<student>                bound of its change against the best, a share of nDCG@10, on the data set
                                           where it is least; from -margin on a faster one may be chosen; -1 or 0
                                           where too few queries bound nothing
    choice.alike.<student>.p_value, p50_ms    faster ones that cannot be told from the chosen one by a paired t-test
    choice.overlap, runner_up_overlap      only where nothing is judged: the mean overlap over data sets, which decided
    choice.reason                          why this student, in words
    choice.replacing                       students within the budget that can replace the teacher; the choice is one of
                                           them, if there are any
    choice.test_difference, test_p_value   how far the runner-up is behind on test; null: dev did not decide
    choice.runner_up, runner_up_p50_ms, runner_up_ndcg    the best of the others within it; null: there is none
    choice.difference, p_value             how far the runner-up is behind, below 0 where it is ahead; paired t-test
    choice.over_budget.<student>           p50 in milliseconds of a student that the budget leaves out
    audit.checked_texts, evaluation_queries, leaks     the leak audit; a leak fails the stage, so leaks is 0
    releases.<student>                     checksum of the manifest of the release that was measured
    settings.version                       of this schema
    settings.seed, throughput_batch, rerank_depth, ignore_identical_ids, min_relevance.<set>, margin, confidence    what
                                           they depend on; margin and confidence are those of promote.policy

Numbers only, but for the names in `choice`, `fused`, `like_for_like`, `releases`, `seeds` and `verdict`, and the knobs
in `effort`: no dates or machine facts, so that equal results are equal files apart from timings and, where these
decide, the choice.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from steps.evaluate.choice import Choice
from steps.evaluate.comparing import Comparison, Retention
from steps.evaluate.gains import fusion_gains
from steps.evaluate.latency import THROUGHPUT_BATCH, Latency
from steps.evaluate.measuring import Result, Task
from steps.evaluate.params import AS_ONE
from steps.retrieval.dataset_groups import joint_means, units

Metrics = dict[str, Any]
VERSION = 4  # 2 had no seeds, and raw scores' label terms in geometry; 1 had MRR@10, MAP@1000 and Recall@k


def assemble(
    results: Mapping[str, Result],
    latencies: Mapping[str, Latency],
    retained: Mapping[str, Retention],
    compared: Mapping[str, Mapping[str, Comparison]],
    gained: Mapping[str, Any],
    choice: Choice,
    task: Task,
    audit: Mapping[str, int],
) -> Metrics:
    """Nest everything measured, and what follows from it, under the documented keys; `results` by system."""
    means: dict[str, dict[str, dict[str, dict[str, float]]]] = {"test": defaultdict(dict), "dev": defaultdict(dict)}
    for model, result in results.items():
        for item in result.scored:
            means[item.judged.split][item.judged.dataset][model] = item.means()
    queries: dict[str, dict[str, int]] = defaultdict(dict)
    for judged in task.judged:
        queries[judged.dataset][judged.split] = len(judged.query_ids)
    return {
        "datasets": means["test"],
        "datasets_dev": means["dev"],
        "as_one": joint_means(means["test"], AS_ONE),
        "as_one_dev": joint_means(means["dev"], AS_ONE),
        "retention": {student: value.as_dict() for student, value in retained.items()},
        "retention_by_set": {
            dataset: {student: asdict(value.of_set[dataset]) for student, value in retained.items()}
            for dataset in units(compared, AS_ONE)
            if all(dataset in value.of_set for value in retained.values())
        },
        "significance": {
            dataset: {student: asdict(value) for student, value in row.items()} for dataset, row in compared.items()
        },
        **gained,
        "latency": {model: asdict(value) for model, value in latencies.items()},
        "choice": choice.as_dict(),
        "sizes": {model: {"bytes": result.bytes} for model, result in results.items() if result.bytes is not None},
        "indexes": {
            dataset: {kind: figures.as_dict() for kind, figures in row.items()}
            for result in results.values()
            for dataset, row in result.indexes.items()
        },
        "serving": _by_dataset(results, lambda result: result.serving),
        "fused": fusion_gains(results),
        "closeness": _by_dataset(results, lambda result: result.closeness),
        "closeness_texts": {item.dataset: item.parts for item in task.texts},
        "queries": queries,
        "audit": dict(audit),
        "settings": {
            "version": VERSION,
            "seed": task.params.seed,
            "throughput_batch": THROUGHPUT_BATCH,
            "rerank_depth": task.params.rerank_depth,
            "ignore_identical_ids": int(task.params.ignore_identical_ids),
            "min_relevance": dict(task.params.min_relevance),
        },
    }


def _by_dataset(
    results: Mapping[str, Result], figures: Callable[[Result], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Some figures of each result as `[data set][model]`."""
    named: dict[str, dict[str, Any]] = defaultdict(dict)
    for model, result in results.items():
        for dataset, value in figures(result).items():
            named[dataset][model] = value.as_dict()
    return dict(named)
