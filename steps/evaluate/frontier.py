"""The frontier: retention against the latency of one query, as a table and as a picture."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from steps.core.files import staged_file
from steps.evaluate.drawing import CARD, INK, MUTED, STUDENT, TEACHER, WIDE, bare, bare_figure, inline, style
from steps.evaluate.latency import Latency
from steps.evaluate.metrics import Metrics
from steps.evaluate.retention import Retention
from steps.retrieval.as_one import counted

_HEIGHT = 3.7  # inches of the axes
_LETTER = 6.5, 13.0  # of a label, in typographic points
_Box = tuple[float, float, float, float]  # left, bottom, right, top


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
        found = retained.get(model)
        whole = 1.0 if metrics["datasets"] else math.nan
        ratio, low, high = (found.mean_of_ratios, found.ci95_low, found.ci95_high) if found else (whole, whole, whole)
        points.append(Point(model, latency.p50_ms, ratio, low, high, mean_ndcg(metrics, model)))
    return sorted(points, key=lambda point: (point.p50_ms, point.model))


def mean_ndcg(metrics: Metrics, model: str) -> float:
    """Mean of a model's test nDCG@10 over data sets; NaN where none is judged."""
    values = [models[model]["nDCG@10"] for models in counted(metrics).values()]
    return float(sum(values) / len(values)) if values else math.nan


def write_frontier(path: Path, points: Sequence[Point]) -> None:
    """Write `model,p50_ms,retention,ndcg`, one row a model, for `dvc plots`; what is NaN stays empty."""
    with staged_file(path) as staging, staging.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "p50_ms", "retention", "ndcg"])
        for point in points:
            quality = ["" if math.isnan(value) else f"{value:.6f}" for value in (point.retention, point.ndcg)]
            writer.writerow([point.model, f"{point.p50_ms:.4f}", *quality])


def draw_frontier(
    points: Sequence[Point], bm25: float, chosen: str | None, budget_ms: float, width: float = WIDE
) -> str:
    """The frontier as an SVG element for inlining, `width` in inches; `bm25` is the mean of BM25 / teacher by data set.

    The chosen model is ringed and the budget, in milliseconds, is a line; None and 0 draw neither.
    """
    narrower = WIDE / width
    with matplotlib.rc_context(style(width)):
        figure = bare_figure(width, _HEIGHT + 0.7)
        axes = figure.subplots()
        _frame(axes, points, bm25, budget_ms, narrower)
        _draw_bm25(axes, bm25)
        if budget_ms:
            _draw_budget(axes, budget_ms)
        for point, height in zip(points, _label_heights(axes, points, width), strict=True):
            _draw_point(axes, point, height, point.model == chosen)
        told = ", ".join(
            f"{each.model} {each.retention:.1%} at {each.p50_ms:.3g} ms{' (chosen)' * (each.model == chosen)}"
            for each in points
            if each.retention >= 0
        )
        return inline(figure, f"Retention of nDCG@10 against the time to encode one query: {told}")


def _frame(axes: Axes, points: Sequence[Point], bm25: float, budget_ms: float, narrower: float) -> None:
    """Axes, grid and limits with room for the labels."""
    times = [p.p50_ms for p in points] + ([budget_ms] if budget_ms else [])
    fastest, slowest = min(times), max(times)
    axes.set_xscale("log")
    axes.set_xlim(fastest / 2, slowest * 2.2**narrower)
    lowest = min([p.ci95_low for p in points] + [bm25]) * 100
    highest = max([p.ci95_high for p in points] + [bm25, 1.0]) * 100
    room = max((highest - lowest) * 0.12, 1.0)
    axes.set_ylim(lowest - room, highest + room)
    axes.set_xlabel("time to encode one query, ms (one thread, log scale)", color=MUTED)
    axes.set_ylabel("retention: nDCG@10, % of the teacher's", color=MUTED)
    tens = narrower > 1 and slowest > 20 * fastest
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if tens else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    bare(axes)


def _draw_bm25(axes: Axes, bm25: float) -> None:
    axes.axhline(bm25 * 100, color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
    axes.annotate(
        f"BM25 (no encoder) {bm25 * 100:.1f}",
        (1, bm25 * 100),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 5),
        textcoords="offset points",
        ha="right",
        color=MUTED,
    )


def _draw_budget(axes: Axes, budget_ms: float) -> None:
    """A line over the whole height; its label stands below every point, on the side that has room."""
    axes.axvline(budget_ms, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    left, right = axes.get_xlim()
    room = math.log(budget_ms / left) < 0.8 * math.log(right / left)
    axes.annotate(
        f"budget {budget_ms:g} ms",
        (budget_ms, 0),
        xycoords=("data", "axes fraction"),
        xytext=(5 if room else -5, 4),
        textcoords="offset points",
        ha="left" if room else "right",
        color=MUTED,
    )


def _draw_point(axes: Axes, point: Point, height: float, chosen: bool) -> None:
    teacher = point.model == "teacher"
    colour = TEACHER if teacher else STUDENT
    percent = point.retention * 100
    if not teacher:
        axes.vlines(point.p50_ms, point.ci95_low * 100, point.ci95_high * 100, color=colour, linewidth=1.5, alpha=0.45)
    axes.plot(point.p50_ms, percent, marker="D" if teacher else "o", markersize=8, color=colour, markeredgewidth=0)
    if chosen:
        axes.plot(point.p50_ms, percent, marker="o", markersize=15, markerfacecolor="none", markeredgecolor=colour)
    axes.annotate(
        _label(point),
        (point.p50_ms, percent),
        xytext=(12 if chosen else 8, height),
        textcoords="offset points",
        va="bottom" if height > 0 else "top",
        color=INK,
        fontweight="bold",
        zorder=1.5,  # its box hides the budget's line, never a point
        bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1},
    )


def _label(point: Point) -> str:
    return "teacher" if point.model == "teacher" else f"{point.model} {point.retention * 100:.1f}"


def _label_heights(axes: Axes, points: Sequence[Point], width: float) -> list[float]:
    """How far above or below its point each label stands, in typographic points: where it covers nothing, or almost."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [
        (
            math.log(point.p50_ms / left) / math.log(right / left) * (width - 0.8) * 72,
            (point.retention * 100 - low) / (high - low) * _HEIGHT * 72,
        )
        for point in points
    ]
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    heights = []
    for point, (x, y) in zip(points, places, strict=True):
        boxes = {}
        for height in (7.0, -7.0, 20.0, -20.0):
            bottom = y + height - (0 if height > 0 else _LETTER[1])
            boxes[height] = x + 9, bottom, x + 9 + _LETTER[0] * len(_label(point)), bottom + _LETTER[1]
        height = min(boxes, key=lambda each: sum(_overlap(boxes[each], other) for other in taken))
        taken.append(boxes[height])
        heights.append(height)
    return heights


def _overlap(one: _Box, other: _Box) -> float:
    """The area that two boxes share."""
    wide, tall = (min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1))
    return max(wide, 0.0) * max(tall, 0.0)
