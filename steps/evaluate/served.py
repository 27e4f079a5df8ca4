"""Each student as its release serves it: alone, or on the data sets where that carries BM25 fused with it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steps.evaluate.gains import fused_name
from steps.evaluate.latency import Latency
from steps.evaluate.measuring import Result
from steps.evaluate.systems import TEACHER


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
    searched = {
        dataset: kinds["ann" if "ann" in kinds else "flat"].p50_ms
        for dataset, kinds in results[TEACHER].indexes.items()
    }
    return {
        name: max(
            [encoded]
            + [encoded + search_ms for dataset, search_ms in searched.items() if dataset not in fused[name]]
            + [results[fused_name(name)].fusions[dataset].p50_ms for dataset in fused[name]]
        )
        for name, encoded in alone.items()
    }


def fusing(metrics: Mapping[str, Any], student: str = "") -> list[str]:
    """Data sets on which a student's release fuses with BM25; without a name on which any does; by metrics.json."""
    rows = metrics.get("fused", {})
    return sorted(
        dataset
        for dataset, row in rows.items()
        if any(figures["carried"] for name, figures in row.items() if student in ("", name))
    )


def behind_api(metrics: Mapping[str, Any]) -> bool:
    """Whether the teacher is behind an API, so that its query side has no size here; by metrics.json."""
    return TEACHER not in metrics["sizes"]


def served_ms_ratio(metrics: Mapping[str, Any], student: str) -> float:
    """How many times as fast as the teacher a student answers, as `served_ms` counts; by metrics.json."""
    return float(metrics["served"][TEACHER]["p50_ms"] / metrics["served"][student]["p50_ms"])


def served_name(metrics: Mapping[str, Any], student: str) -> str:
    """A student's name, with BM25 if its release adds that: `4l with BM25`."""
    sets = fusing(metrics, student)
    if not sets:
        return student
    return f"{student} with BM25{'' if len(sets) == len(metrics['queries']) else ' on ' + ', '.join(sets)}"


def fused_sets(name: str, results: Mapping[str, Result]) -> set[str]:
    """Data sets on which a system, the teacher or a student, is released with BM25 fused in."""
    fused = results.get(fused_name(name))
    return {dataset for dataset, figures in fused.fusions.items() if figures.carried} if fused else set()
