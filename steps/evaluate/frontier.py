"""What a reader sees first: all systems as one table, and the frontier of quality and speed as table and picture."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtower.common.files import staged_file
from steps.core.measures import NDCG, counted_sets
from steps.evaluate.drawing import Mark, Panel
from steps.evaluate.formatting import in_words, times
from steps.evaluate.systems import BM25, TEACHER, fused_bytes, fused_name, fusing, served_systems

Metrics = Mapping[str, Any]
_SLICES = 5
_AS_GOOD = {"mean_of_ratios": 1.0, "ci95_low": 1.0, "ci95_high": 1.0}  # the teacher, by definition


def by_speed(metrics: Metrics) -> list[str]:
    """The models with an encoder, teacher and students, fastest first."""
    return sorted(metrics["latency"], key=lambda model: (metrics["latency"][model]["p50_ms"], model))


def mean_ndcg(metrics: Metrics, model: str) -> float:
    """Mean of a model's test nDCG@10 over data sets; NaN where none is judged."""
    values = [models[model][NDCG] for models in counted_sets(metrics).values()]
    return float(sum(values) / len(values)) if values else math.nan


def write_frontier(path: Path, metrics: Metrics) -> None:
    """Write `model,p50_ms,retention,ndcg`, a row a model, for `dvc plots`; the last two empty if none is judged."""
    with staged_file(path) as staging, staging.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "p50_ms", "retention", "ndcg"])
        for model in by_speed(metrics):
            retained = metrics["retention"].get(model, _AS_GOOD)["mean_of_ratios"]
            quality = [f"{value:.6f}" for value in (retained, mean_ndcg(metrics, model))]
            p50_ms = f"{metrics['latency'][model]['p50_ms']:.4f}"
            writer.writerow([model, p50_ms, *(quality if metrics["datasets"] else ("", ""))])


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


def table_rows(metrics: Metrics) -> list[Row]:
    """Every system of the test queries, means over data sets, the best first; [] if nothing is judged."""
    sets = counted_sets(metrics)
    systems = [name for name in next(iter(sets.values()), {}) if all(name in models for models in sets.values())]
    return sorted((_row(metrics, name) for name in systems), key=lambda row: (-row.ndcg, row.name))


def _row(metrics: Metrics, name: str) -> Row:
    dense = name.removesuffix(f"+{BM25}")
    fused, student = dense != name, dense in metrics["retention"]
    released = metrics["served"].get(dense, {}) if fused and student and fusing(metrics, dense) else {}
    retention = released or metrics["retention"].get(name, {})
    if not retention and len(metrics["shares"]) == 1:
        [shares] = metrics["shares"].values()
        retention = shares.get(name, {})
    p50_ms = fused_ms(metrics, dense) if fused else metrics["latency"].get(name, {}).get("p50_ms")
    teacher_ms = metrics["served" if fused else "latency"][TEACHER]["p50_ms"]
    size = metrics["sizes"].get(dense, {}).get("bytes") if released or not fused else None
    return Row(
        name=f"{dense} with BM25" if fused else "BM25" if name == BM25 else name,
        words="keyword search" if name == BM25 else "" if in_words(dense) == dense else in_words(dense),
        of=dense if student or dense == TEACHER else "",
        ndcg=mean_ndcg(metrics, name),
        kept=kept_of_teacher(metrics, name),
        interval=(retention["ci95_low"], retention["ci95_high"]) if retention else None,
        p50_ms=p50_ms,
        speed=teacher_ms / p50_ms if student and p50_ms and (not fused or fusing(metrics)) else None,
        bytes=size + fused_bytes(metrics, dense) if size is not None and fused else size,
    )


def kept_of_teacher(metrics: Metrics, name: str) -> float | None:
    """The mean over data sets of a system's share of the teacher's nDCG@10; None: nothing judged, or 0 on all."""
    sets = [models for models in counted_sets(metrics).values() if models[TEACHER][NDCG]]
    return sum(models[name][NDCG] / models[TEACHER][NDCG] for models in sets) / len(sets) if sets else None


def fused_ms(metrics: Metrics, dense: str) -> float | None:
    """Milliseconds from text to hits of a system with BM25, on the data set on which it takes longest."""
    return max((row[dense]["p50_ms"] for row in metrics["fused"].values() if dense in row), default=None)


def message(metrics: Metrics) -> tuple[str, str, str]:
    """What the picture shows, by the encoders' figures: of what they are, how fast and how good these are."""
    latency, students = metrics["latency"], list(metrics["retention"])
    speeds = sorted(latency[TEACHER]["p50_ms"] / latency[name]["p50_ms"] for name in students)
    shares = sorted(metrics["retention"][name]["mean_of_ratios"] for name in students)
    speed = _span([times(value) for value in speeds])
    first = f"{speed} times faster queries" if speeds[0] >= 1.05 else f"queries at {speed} times the teacher's speed"
    of = "Encoders alone, same index:" if fusing(metrics) else "Same index:"
    return of, first, f"{_span([f'{value * 100:.0f}' for value in shares])} % of the teacher's nDCG@10"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def panels(metrics: Metrics, extra_marks: Sequence[Mark] = ()) -> list[Panel]:
    """The encoders alone, and, if a release adds BM25, all as they are released; `extra_marks` join the encoders."""
    choice = metrics["choice"]
    chosen, budget, fuses = choice["student"], choice["budget_ms"], bool(fusing(metrics))
    alone = [
        _mark(
            in_words(model),
            metrics["latency"][model]["p50_ms"],
            metrics["retention"].get(model, _AS_GOOD),
            teacher=model == TEACHER,
            chosen=model == chosen and not fuses,
        )
        for model in by_speed(metrics)
    ]
    encoders = "encoder alone: text to embedding" if fuses else ""
    drawings = [Panel(encoders, [*alone, *extra_marks], 0.0 if fuses else budget)]
    if fuses:
        title = "released with BM25: text to hits" if _all_fuse(metrics) else "as released: text to hits"
        drawings.append(Panel(title, _released(metrics), budget))
    return drawings


def _mark(name: str, p50_ms: float, figures: Mapping[str, float], **flags: bool) -> Mark:
    return Mark(name, p50_ms, figures["mean_of_ratios"], figures["ci95_low"], figures["ci95_high"], **flags)


def _all_fuse(metrics: Metrics) -> bool:
    return all(fusing(metrics, name) for name in metrics["retention"])


def _released(metrics: Metrics) -> list[Mark]:
    """Students as their releases answer, the teacher, and the teacher with BM25 if it was measured everywhere."""
    served, chosen = metrics["served"], metrics["choice"]["student"]
    marks = [_mark(TEACHER, served[TEACHER]["p50_ms"], _AS_GOOD, teacher=True)]
    if all(fused_name(TEACHER) in models for models in counted_sets(metrics).values()):
        p50_ms, share = fused_ms(metrics, TEACHER), kept_of_teacher(metrics, fused_name(TEACHER))
        if p50_ms and share:
            marks.append(Mark(f"{TEACHER} + BM25", p50_ms, share, share, share, teacher=True))
    for name in metrics["retention"]:
        words = in_words(name) + " + BM25" * (bool(fusing(metrics, name)) and not _all_fuse(metrics))
        marks.append(_mark(words, served[name]["p50_ms"], served[name], chosen=name == chosen))
    return sorted(marks, key=lambda mark: (mark.p50_ms, mark.name))


def by_set(metrics: Metrics) -> list[tuple[str, float, list[float | None]]]:
    """Data set, the teacher's nDCG@10, and the share that each student keeps as released, the hardest first.

    [] for a single data set: the table of all has its figures.
    """
    lines = []
    for dataset, models in counted_sets(metrics).items():
        teacher, systems = models[TEACHER][NDCG], served_systems(metrics, dataset).values()
        lines.append((dataset, teacher, [models[name][NDCG] / teacher if teacher else None for name in systems]))
    lines.sort(key=lambda line: (min(share or 0.0 for share in line[2]), line[0]))
    return lines if len(lines) > 1 else []


def worst_slices(metrics: Metrics, best: str) -> list[Loss]:
    """The kinds of query that `best` keeps least on, of those on which some student's interval lies below the teacher.

    Students are as their releases serve them. The slice of all queries is none.
    """
    losses = []
    for dataset, rows in metrics["slices"].items():
        systems = served_systems(metrics, dataset).items()
        for name, row in rows.items():
            shares = {student: row["retention"][system] for student, system in systems if system in row["retention"]}
            is_all = row["queries"] >= metrics["queries"][dataset]["test"]
            if best in shares and not is_all and any(share["ci95_high"] < 1 for share in shares.values()):
                losses.append(Loss(dataset, name, row["queries"], row["ndcg"][TEACHER], shares))
    return sorted(losses, key=lambda loss: (loss.kept[best]["ratio"], loss.dataset, loss.name))[:_SLICES]
