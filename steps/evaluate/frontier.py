"""What a reader sees first: all systems as one table, and the frontier of quality and speed as table and picture."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtower.common.files import staged_file
from steps.core.measures import NDCG
from steps.evaluate.comparing import Retention
from steps.evaluate.drawing import Mark, Panel
from steps.evaluate.formatting import in_words, times
from steps.evaluate.latency import Latency
from steps.evaluate.metrics import Metrics
from steps.evaluate.served import fusing
from steps.evaluate.systems import BM25, TEACHER, fused_name
from steps.retrieval.dataset_groups import counted_sets


@dataclass(frozen=True)
class Point:
    """A model with an encoder: p50 in ms, retention as a ratio with its interval, mean test nDCG@10 over data sets.

    All but the first are NaN where nothing is judged.
    """

    model: str
    p50_ms: float
    retention: float
    ci95_low: float
    ci95_high: float
    ndcg: float


def frontier(latencies: Mapping[str, Latency], retained: Mapping[str, Retention], metrics: Metrics) -> list[Point]:
    """The teacher (retention 1 by definition) and the students, fastest first."""
    points = []
    for model, latency in latencies.items():
        figures = retained.get(model)
        ratio = low = high = 1.0 if metrics["datasets"] else math.nan
        if figures:
            ratio, low, high = figures.mean_of_ratios, figures.ci95_low, figures.ci95_high
        points.append(Point(model, latency.p50_ms, ratio, low, high, mean_ndcg(metrics, model)))
    return sorted(points, key=lambda point: (point.p50_ms, point.model))


def mean_ndcg(metrics: Mapping[str, Any], model: str) -> float:
    """Mean of a model's test nDCG@10 over data sets; NaN where none is judged."""
    values = [models[model]["nDCG@10"] for models in counted_sets(metrics).values()]
    return float(sum(values) / len(values)) if values else math.nan


def write_frontier(path: Path, points: Sequence[Point]) -> None:
    """Write `model,p50_ms,retention,ndcg`, one row a model, for `dvc plots`; what is NaN stays empty."""
    with staged_file(path) as staging, staging.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "p50_ms", "retention", "ndcg"])
        for point in points:
            quality = ["" if math.isnan(value) else f"{value:.6f}" for value in (point.retention, point.ndcg)]
            writer.writerow([point.model, f"{point.p50_ms:.4f}", *quality])


_SLICES = 5


@dataclass(frozen=True)
class Row:
    """A system of the table; None: not measured. `kept` is a ratio with the ends of its interval, if it has one.

    `p50_ms` of a system that fuses with BM25 is from text to hits, of the others to encode.
    """

    name: str
    words: str
    of: str
    """The student that it belongs to, `teacher`, or nothing."""
    ndcg: float
    kept: float | None
    interval: tuple[float, float] | None
    p50_ms: float | None
    speed: float | None
    bytes: int | None


@dataclass(frozen=True)
class Loss:
    """A kind of query, the teacher's nDCG@10 on it, and what each student keeps as its release serves it."""

    dataset: str
    name: str
    queries: int
    ndcg: float
    kept: Mapping[str, Mapping[str, float]]


def table_rows(metrics: Metrics, points: Sequence[Point]) -> list[Row]:
    """Every system of the test queries, means over data sets, the best first; [] if nothing is judged."""
    sets = counted_sets(metrics)
    systems = [name for name in next(iter(sets.values()), {}) if all(name in models for models in sets.values())]
    return sorted((_row(metrics, name, points) for name in systems), key=lambda row: (-row.ndcg, row.name))


def _row(metrics: Metrics, name: str, points: Sequence[Point]) -> Row:
    dense = name.removesuffix(f"+{BM25}")
    fused, student = dense != name, dense in metrics["retention"]
    released = metrics["served"].get(dense, {}) if fused and student and fusing(metrics, dense) else {}
    retention = released if released else metrics["retention"].get(name, {})
    p50_ms = fused_ms(metrics, dense) if fused else metrics["latency"].get(name, {}).get("p50_ms")
    teacher_ms = metrics["served"][TEACHER]["p50_ms"] if fused else metrics["latency"][TEACHER]["p50_ms"]
    return Row(
        name=f"{dense} with BM25" if fused else "BM25" if name == BM25 else name,
        words="keyword search" if name == BM25 else "" if in_words(dense) == dense else in_words(dense),
        of=dense if student or dense == TEACHER else "",
        ndcg=mean_ndcg(metrics, name),
        kept=kept_of_teacher(metrics, name),
        interval=(retention["ci95_low"], retention["ci95_high"])
        if "ci95_low" in retention
        else _interval(metrics, name),
        p50_ms=p50_ms,
        speed=teacher_ms / p50_ms if student and p50_ms else None,
        bytes=_bytes(metrics, dense, fused=fused) if released or not fused else None,
    )


def _bytes(metrics: Metrics, dense: str, *, fused: bool) -> int | None:
    """Size of the query side, `fused` with the BM25 index that its release carries."""
    lexical = sum(metrics["fused"][dataset][dense]["bytes"] for dataset in fusing(metrics, dense)) if fused else 0
    return metrics["sizes"][dense]["bytes"] + lexical if dense in metrics["sizes"] else None


def kept_of_teacher(metrics: Metrics, name: str) -> float | None:
    """The mean over data sets of a system's nDCG@10 as a share of the teacher's; None: the teacher has 0 on all."""
    sets = [models for models in counted_sets(metrics).values() if models[TEACHER][NDCG]]
    return sum(models[name][NDCG] / models[TEACHER][NDCG] for models in sets) / len(sets) if sets else None


def _interval(metrics: Metrics, name: str) -> tuple[float, float] | None:
    """That of the only data set; None: there are several, or the system is the teacher."""
    rows = [row[name] for row in metrics["shares"].values() if name in row]
    return (rows[0]["ci95_low"], rows[0]["ci95_high"]) if len(rows) == len(metrics["shares"]) == 1 else None


def fused_ms(metrics: Metrics, dense: str) -> float | None:
    """Milliseconds from text to hits of a system with BM25, on the data set on which it takes longest."""
    return max((row[dense]["p50_ms"] for row in metrics["fused"].values() if dense in row), default=None)


def message(metrics: Metrics) -> tuple[str, str]:
    """What the picture shows, in two lines, by the encoders' figures."""
    latency, students = metrics["latency"], list(metrics["retention"])
    speeds = sorted(latency[TEACHER]["p50_ms"] / latency[name]["p50_ms"] for name in students)
    shares = sorted(metrics["retention"][name]["mean_of_ratios"] for name in students)
    speed = _span([times(value) for value in speeds])
    first = f"{speed} times faster queries" if speeds[0] >= 1.05 else f"Queries at {speed} times the teacher's speed"
    return first, f"{_span([f'{value * 100:.0f}' for value in shares])} % of the quality, same index"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def panels(metrics: Metrics, points: Sequence[Point], extra_marks: Sequence[Mark] = ()) -> list[Panel]:
    """The encoders alone, and, if a release adds BM25, all as they are released; `extra_marks` join the encoders."""
    choice = metrics["choice"]
    chosen, budget, fuses = choice["student"], choice["budget_ms"], bool(fusing(metrics))
    alone = [
        Mark(
            in_words(point.model),
            point.p50_ms,
            point.retention,
            point.ci95_low,
            point.ci95_high,
            teacher=point.model == TEACHER,
            chosen=point.model == chosen and not fuses,
        )
        for point in points
        if point.retention >= 0
    ]
    encoders = "encoder alone: text to embedding" if fuses else ""
    drawings = [Panel(encoders, [*alone, *extra_marks], 0.0 if fuses else budget)]
    if fuses:
        title = "released with BM25: text to hits" if _all_fuse(metrics) else "as released: text to hits"
        drawings.append(Panel(title, _released(metrics), budget))
    return drawings


def _all_fuse(metrics: Metrics) -> bool:
    return all(fusing(metrics, name) for name in metrics["retention"])


def _released(metrics: Metrics) -> list[Mark]:
    """Students as their releases answer, the teacher, and the teacher with BM25 if it was measured everywhere."""
    marks = [Mark(TEACHER, metrics["served"][TEACHER]["p50_ms"], 1.0, 1.0, 1.0, teacher=True)]
    fused_teacher = fused_name(TEACHER)
    if all(fused_teacher in models for models in counted_sets(metrics).values()):
        p50_ms, share = fused_ms(metrics, TEACHER), kept_of_teacher(metrics, fused_teacher)
        if p50_ms and share:
            marks.append(Mark(f"{TEACHER} + BM25", p50_ms, share, share, share, teacher=True))
    for name in metrics["retention"]:
        figures = metrics["served"][name]
        marks.append(
            Mark(
                in_words(name) + " + BM25" * (bool(fusing(metrics, name)) and not _all_fuse(metrics)),
                figures["p50_ms"],
                figures["mean_of_ratios"],
                figures["ci95_low"],
                figures["ci95_high"],
                chosen=name == metrics["choice"]["student"],
            )
        )
    return sorted(marks, key=lambda mark: (mark.p50_ms, mark.name))


def bm25_share(metrics: Metrics) -> float | None:
    """BM25's share of the teacher's nDCG@10; None if nothing is judged, or the teacher has 0 on every data set."""
    return kept_of_teacher(metrics, BM25)


def by_set(metrics: Metrics) -> list[tuple[str, float, list[float | None]]]:
    """Data set, the teacher's nDCG@10, and the share that each student keeps as its release serves it.

    The hardest for the students first. [] for a single data set: the table of all has its figures.
    """
    lines = []
    for dataset, models in counted_sets(metrics).items():
        teacher_ndcg = models[TEACHER][NDCG]
        names = [fused_name(name) if dataset in fusing(metrics, name) else name for name in metrics["retention"]]
        lines.append(
            (dataset, teacher_ndcg, [models[name][NDCG] / teacher_ndcg if teacher_ndcg else None for name in names])
        )
    lines.sort(key=lambda line: (min(share or 0.0 for share in line[2]), line[0]))
    return lines if len(lines) > 1 else []


def worst_slices(metrics: Metrics, best: str) -> list[Loss]:
    """The kinds of query that `best` keeps least on, of those on which some student's interval lies below the teacher.

    Students are as their releases serve them. The slice of all queries is none.
    """
    losses = []
    for dataset, rows in metrics["slices"].items():
        names = {
            student: fused_name(student) if dataset in fusing(metrics, student) else student
            for student in metrics["retention"]
        }
        for name, row in rows.items():
            shares = {
                student: row["retention"][system] for student, system in names.items() if system in row["retention"]
            }
            is_all = row["queries"] >= metrics["queries"][dataset]["test"]
            if best in shares and not is_all and any(share["ci95_high"] < 1 for share in shares.values()):
                losses.append(Loss(dataset, name, row["queries"], row["ndcg"][TEACHER], shares))
    return sorted(losses, key=lambda loss: (loss.kept[best]["ratio"], loss.dataset, loss.name))[:_SLICES]
