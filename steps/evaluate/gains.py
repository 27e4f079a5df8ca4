"""Students against the teacher by every measure, what training and BM25 bring, and students as their releases serve."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steps.core.measures import NDCG, UNCUT, counted_sets, weights
from steps.evaluate.comparing import bootstrap_p_value, compare, holm, is_chance, is_gain, p_value, significant
from steps.evaluate.latency import Latency
from steps.evaluate.measuring import Result
from steps.evaluate.params import AS_ONE
from steps.evaluate.systems import BM25, TEACHER, fused_name
from steps.retrieval.noninferiority import FEWEST


def gains(teacher: Result, earlier: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    """The teacher against every earlier tower: the parts `gain`, `gain_dev` and `gain_overall` of metrics.json."""
    parts: dict[str, dict[str, Any]] = {"gain": {}, "gain_dev": {}, "gain_overall": {}}
    for split, part in (("dev", "gain_dev"), ("test", "gain")):  # the first that there is says whether training helped
        after = teacher.ndcg(split)
        shares = weights(list(after), AS_ONE)
        for name, tower in earlier.items() if after else ():
            before = tower.ndcg(split)
            for dataset, values in after.items():
                parts[part].setdefault(dataset, {})[name] = _against(values, before[dataset])
            differences = [values - before[dataset] for dataset, values in after.items()]
            mean = float(np.average([values.mean() for values in differences], weights=shares))
            overall = {"difference": mean, "p_value": p_value(differences, shares)}
            parts["gain_overall"].setdefault(name, overall)
    return parts


def fusion_gains(results: Mapping[str, Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """`[data set][dense system]`: the figures of metrics.json, `fused`."""
    gains: dict[str, dict[str, dict[str, Any]]] = {}
    for name, result in results.items():
        dense = name.removesuffix(f"+{BM25}")
        values = result.ndcg("test")
        for dataset, figures in result.fusions.items():
            against = {
                f"against_{baseline}": _against(values[dataset], results[system].ndcg("test")[dataset])
                for baseline, system in (("dense", dense), ("bm25", BM25))
                if dataset in values
            }
            gains.setdefault(dataset, {})[dense] = dict(figures) | against
    return gains


def fusion_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Whether fusion with BM25 wins, a line a data set and dense system."""
    return [_line(dataset, dense, row[dense]) for dataset, row in metrics["fused"].items() for dense in row]


def _line(dataset: str, dense: str, figures: Mapping[str, Any]) -> str:
    dev, test, verdict = figures["dev"], figures.get("against_dense"), "not compared on dev queries"
    start = f"{fused_name(dense)} on {dataset}{', as released' if figures['carried'] else ''}"
    if dev is not None:
        finding = "better beyond chance" if dev["wins"] else "not shown to be better"
        verdict = f"{finding} on {dev['queries']} dev queries, nDCG@10 {dev['dense']:.4f} to {dev['fused']:.4f}"
        verdict += f" (p {significant(dev['p_value'])})"
    on_test = f"; {test['difference']:+.4f} on test (p {significant(test['p_value'])})" if test else ""
    return f"{start}: {verdict}{on_test}; {figures['told']}; {figures['p50_ms']:.3g} ms from text to hits"


def _against(fused: np.ndarray, baseline: np.ndarray) -> dict[str, Any]:
    return {"difference": float((fused - baseline).mean())} | compare(fused, baseline)


def as_served(name: str, results: Mapping[str, Result]) -> Result:
    """What was measured of a student, with the values and dev hits of the fused system where its release fuses."""
    dense, fused, sets = results[name], results.get(fused_name(name)), fused_sets(name, results)
    if fused is None or not sets:
        return dense
    pairs = zip(dense.scored, fused.scored, strict=True)
    return replace(
        dense,
        scored=[both if both.judged.dataset in sets else alone for alone, both in pairs],
        best=dict(dense.best) | {dataset: hits for dataset, hits in fused.best.items() if dataset in sets},
    )


def served_ms(
    results: Mapping[str, Result], latencies: Mapping[str, Latency], students: Sequence[str]
) -> dict[str, float]:
    """Median milliseconds of a query by the teacher and each student, by name: text to embedding.

    Where the release of any student fuses, of all of them text to hits, over the index that serves, on the data set
    where that takes longest: for a dense system the medians of encoding and search added up.
    """
    alone = {name: latencies[name].p50_ms for name in (TEACHER, *students)}
    fused = {name: fused_sets(name, results) for name in alone}
    if not any(fused.values()):
        return alone
    indexes = results[TEACHER].indexes
    searched = {dataset: kinds["ann" if "ann" in kinds else "flat"]["p50_ms"] for dataset, kinds in indexes.items()}
    return {
        name: max(
            [encoded]
            + [encoded + search_ms for dataset, search_ms in searched.items() if dataset not in fused[name]]
            + [results[fused_name(name)].fusions[dataset]["p50_ms"] for dataset in fused[name]]
        )
        for name, encoded in alone.items()
    }


def fused_sets(name: str, results: Mapping[str, Result]) -> set[str]:
    """Data sets on which a system, the teacher or a student, is released with BM25 fused in."""
    fused = results.get(fused_name(name))
    return {dataset for dataset, figures in fused.fusions.items() if figures["carried"]} if fused else set()


def gain_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The teacher against every tower that it was before, a line each; with a warning where training did not help."""
    quality = counted_sets(metrics, "datasets_dev") or counted_sets(metrics)
    split = "dev" if metrics["datasets_dev"] else "test, as there are no dev queries"
    lines = []
    for tower, gain in metrics["gain_overall"].items():
        before, after = (
            sum(models[name][NDCG] for models in quality.values()) / len(quality) for name in (tower, TEACHER)
        )
        line = (
            f"Teacher against {tower}: nDCG@10 {after:.4f} and {before:.4f} on {split}"
            f" (paired t-test, p {significant(gain['p_value'])})"
        )
        if tower == "base" and gain["difference"] <= 0:
            line += (
                "; WARNING: the trained teacher is not better than its base; set its epochs: 0.0, or change learning"
                " rate or data"
            )
        elif tower == "base" and not is_gain(**gain):
            line += "; this may be chance: judge more queries"
        elif gain["difference"] < 0 and not is_chance(gain["p_value"]):
            line += f"; WARNING: it is worse than {tower}, which it was before; train fewer rounds (rounds.more)"
        lines.append(line)
    return lines


def significance(teacher: Result, students: Mapping[str, Result], samples: int, seed: int) -> dict[str, Any]:
    """`[data set][student][measure]` on test queries, as `against_teacher` of metrics.json has it.

    Mean difference, student less teacher, and two-sided p-values; `p_holm` is the t-test's within the measure's family.
    No `p_bootstrap` of fewer than FEWEST queries: so few are resampled into too few means.

    `samples`: resamplings of the bootstrap. A query that a measure has no value of counts in no test of it.
    """
    families: dict[str, dict[tuple[str, str], dict[str, float]]] = defaultdict(dict)
    for name, student in students.items():
        for ours, theirs in zip(student.of_split("test"), teacher.of_split("test"), strict=True):
            for measure in ours.values.keys() - {UNCUT}:
                difference = ours.values[measure] - theirs.values[measure]
                difference = difference[~np.isnan(difference)]
                outcome = {"difference": float(difference.mean()), "p_value": p_value([difference])}
                if len(difference) >= FEWEST:
                    outcome["p_bootstrap"] = bootstrap_p_value(difference, samples, seed)
                families[measure][ours.judged.dataset, name] = outcome
    tests: dict[str, Any] = {}
    for measure, family in families.items():
        adjusted = holm([outcome["p_value"] for outcome in family.values()])
        for ((dataset, name), outcome), p_holm in zip(family.items(), adjusted, strict=True):
            tests.setdefault(dataset, {}).setdefault(name, {})[measure] = outcome | {"p_holm": p_holm}
    return tests
