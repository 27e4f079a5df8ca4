"""The report's drawings as inline SVG: a bare figure in the page's colours, the frontier, and histograms."""

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from steps.evaluate.formatting import milliseconds, percent

# Colours that occur nowhere else in a drawing; each becomes a variable of the page, which knows light and dark.
INK, MUTED, GRID, STUDENT, TEACHER, CARD = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#101112"
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", STUDENT: "student", TEACHER: "teacher", CARD: "card"}
WIDE, NARROW = 8.8, 4.4  # inches: for a screen, and for a phone
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "slimtower", "font.family": "sans-serif"}
STYLE |= {"font.size": 10}


def style(width: float) -> dict[Any, Any]:
    """The settings for a figure so wide: larger letters for a phone, and no name that two widths of a page share."""
    return STYLE if width == WIDE else STYLE | {"svg.hashsalt": f"slimtower {width}", "font.size": 11}


def bare_figure(width: float, height: float) -> Figure:
    """A figure in inches that shows the page behind it; make, draw and inline it within a context of `style`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    return figure


def bare(axes: Axes) -> None:
    """Nothing but a grid behind what is drawn."""
    axes.patch.set_visible(False)
    axes.tick_params(which="both", length=0, labelcolor=MUTED, pad=6)
    axes.minorticks_off()
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def inline(figure: Figure, description: str) -> str:
    """The figure as an svg element, colours as variables of the page; screen readers read out `description`.

    No XML header, metadata or external address, and no names of groups, which two drawings of a page would share.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    (box,) = re.findall(r'^<svg [^>]*viewBox="([^"]*)"', svg)
    svg = f'<svg viewBox="{box}" role="img" aria-label="{html.escape(description)}"' + svg[svg.index(">") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = svg.replace("xlink:href", "href").replace("'DejaVu Sans', ", "")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg


_PANEL = 2.7, 2.4  # inches of a panel's height: beside others, and above them
_LETTER = 0.58, 1.3  # width and height of a label's letter, in ems
_Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Mark:
    """A system: its name in words, milliseconds of a query, retention as a ratio with its interval."""

    name: str
    p50_ms: float
    retention: float
    ci95_low: float
    ci95_high: float
    teacher: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class Panel:
    """Systems whose times are of the same work; a budget of 0 draws none."""

    title: str
    marks: Sequence[Mark]
    budget_ms: float = 0.0


def draw_frontier(panels: Sequence[Panel], bm25: float, width: float = WIDE, title: str = "") -> str:
    """The panels as an SVG element, `width` in inches: side by side if that is wide, else one above the other.

    `bm25` is the mean of BM25 / teacher by data set. The chosen student is ringed, and the budget is a line.
    """
    is_wide = width >= WIDE
    rows, columns = (1, len(panels)) if is_wide else (len(panels), 1)
    with matplotlib.rc_context(style(width)):
        height = 0.9 + _PANEL[0 if is_wide else 1] * rows + 0.25 * len(title.splitlines())
        figure = bare_figure(width, height)
        all_axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        _scale(all_axes[0], panels, bm25, crowded=columns > 1 or width < WIDE)
        for axes, panel in zip(all_axes, panels, strict=True):
            bare(axes)
            if panel.title:
                axes.set_title(panel.title, loc="left", color=MUTED, fontsize=matplotlib.rcParams["font.size"])
            _draw_bm25(axes, bm25)
            if panel.budget_ms:
                _draw_budget(axes, panel.budget_ms)
            for mark in panel.marks:
                _draw_mark(axes, mark)
        figure.supxlabel("← faster · ms for one query, log scale", color=MUTED, fontsize="medium")
        figure.supylabel("% of the teacher's nDCG@10 · better →", color=MUTED, fontsize="medium")
        if title:
            figure.suptitle(title, x=0.02, ha="left", color=INK, fontweight="bold", fontsize="large")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels move nothing
        for axes, panel in zip(all_axes, panels, strict=True):
            _label(axes, panel.marks)
        words = "; ".join(f"{panel.title}: {_describe(panel.marks)}".removeprefix(": ") for panel in panels)
        return inline(figure, f"Retention of nDCG@10 against the time of one query. {words}")


def _describe(marks: Sequence[Mark]) -> str:
    return ", ".join(
        f"{mark.name} {mark.retention:.1%} at {milliseconds(mark.p50_ms)} ms{' (chosen)' * mark.chosen}"
        for mark in marks
    )


def _scale(axes: Axes, panels: Sequence[Panel], bm25: float, *, crowded: bool) -> None:
    """Limits with room for the labels, which hold every mark, every budget, and BM25 if it is near."""
    marks = [mark for panel in panels for mark in panel.marks]
    times = [mark.p50_ms for mark in marks] + [panel.budget_ms for panel in panels if panel.budget_ms]
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.8, max(times) * 4)
    low, high = min(mark.ci95_low for mark in marks) * 100, max(mark.ci95_high for mark in marks) * 100
    if bm25 * 100 >= low - (high - low):
        low = min(low, bm25 * 100)
    room = max((high - low) * 0.3, 1.0)
    axes.set_ylim(low - room, high + room)
    tens = crowded and max(times) > 20 * min(times)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if tens else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_bm25(axes: Axes, bm25: float) -> None:
    """A line, or an arrow at the lower edge if BM25 lies below it."""
    low, _ = axes.get_ylim()
    below = bm25 * 100 < low
    if not below:
        axes.axhline(bm25 * 100, color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
    text, point = f"BM25 alone {percent(bm25)}{' ↓' if below else ''}", (1, low if below else bm25 * 100)
    _note(axes, text, point, ("axes fraction", "data"), (-2, 4))


def _draw_budget(axes: Axes, budget_ms: float) -> None:
    """A line over the whole height; its label stands below every mark, on the side that has room."""
    axes.axvline(budget_ms, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    left, right = axes.get_xlim()
    room = math.log(budget_ms / left) < 0.8 * math.log(right / left)
    _note(axes, f"budget {budget_ms:g} ms", (budget_ms, 0), ("data", "axes fraction"), (5 if room else -5, 18))


def _note(
    axes: Axes, text: str, point: tuple[float, float], units: tuple[str, str], offset: tuple[float, float]
) -> None:
    side = "left" if offset[0] > 0 else "right"
    axes.annotate(text, point, xycoords=units, xytext=offset, textcoords="offset points", ha=side, color=MUTED)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    colour = TEACHER if mark.teacher else STUDENT
    if mark.ci95_high > mark.ci95_low:
        ends = mark.ci95_low * 100, mark.ci95_high * 100
        axes.vlines(mark.p50_ms, *ends, color=colour, linewidth=1.5, alpha=0.45)
    point = mark.p50_ms, mark.retention * 100
    axes.plot(*point, marker="D" if mark.teacher else "o", markersize=8, color=colour, markeredgewidth=0)
    if mark.chosen:
        axes.plot(*point, marker="o", markersize=15, markerfacecolor="none", markeredgecolor=colour)


def _label(axes: Axes, marks: Sequence[Mark]) -> None:
    points = 72 / axes.figure.dpi
    size = float(matplotlib.rcParams["font.size"])
    x0, y0, x1, y1 = (float(value) * points for value in axes.bbox.extents)
    frame = x0, y0, x1, y1
    centres = [axes.transData.transform((mark.p50_ms, mark.retention * 100)) * points for mark in marks]
    boxes: list[_Box] = [(x - 7, y - 7, x + 7, y + 7) for x, y in centres]
    for mark in marks:  # their intervals
        (x, low), (_, high) = (
            axes.transData.transform((mark.p50_ms, bound * 100)) * points for bound in (mark.ci95_low, mark.ci95_high)
        )
        boxes.append((x - 6, low, x + 6, high))
    for mark, (x, y) in zip(marks, centres, strict=True):
        lines = [mark.name, f"{percent(mark.retention)}, {milliseconds(mark.p50_ms)} ms"]
        wide, tall = max(map(len, lines)) * _LETTER[0] * size, 2 * _LETTER[1] * size
        gap = 12.0 if mark.chosen else 9.0
        sides = [
            (left, bottom)
            for bottom in (-tall / 2, 2.0, -tall - 2.0, 12.0, -tall - 12.0)
            for left in (gap, -gap - wide)
        ]
        centred = min(-wide / 2, x1 - x - wide)  # within the frame
        sides += [(centred, gap), (centred, -gap - tall), (centred, gap + 14), (centred, -gap - tall - 14)]
        choices = {(left, bottom): (x + left, y + bottom, x + left + wide, y + bottom + tall) for left, bottom in sides}
        left, bottom = min(choices, key=lambda corner: _cost(choices[corner], boxes, frame))
        boxes.append(choices[left, bottom])
        _write(axes, mark, lines, (left + wide / 2, bottom), wide / 2, size)


def _cost(box: _Box, boxes: Sequence[_Box], frame: _Box) -> float:
    """The area that a label covers, and ten times what of it leaves the frame."""
    inside = _overlap(box, frame)
    return sum(_overlap(box, covered) for covered in boxes) + 10 * ((box[2] - box[0]) * (box[3] - box[1]) - inside)


def _write(axes: Axes, mark: Mark, lines: Sequence[str], centre: tuple[float, float], half: float, size: float) -> None:
    """Two lines around `centre`, an offset from the mark; beside the mark they begin or end there."""
    x, bottom = centre
    side = "center" if abs(x) < half else "left" if x > 0 else "right"
    offset = {"center": x, "left": x - half, "right": x + half}[side]
    for line, up, weight, colour in zip(lines, (1, 0), ("bold", "normal"), (INK, MUTED), strict=True):
        text = axes.annotate(
            line,
            (mark.p50_ms, mark.retention * 100),
            xytext=(offset, bottom + up * _LETTER[1] * size + 2),
            textcoords="offset points",
            ha=side,
            va="bottom",
            color=colour,
            fontweight=weight,
            zorder=1.5,  # its box hides the budget's line, never a mark
            bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0},
        )
        text.set_in_layout(False)


def _overlap(box: _Box, other: _Box) -> float:
    wide, tall = (min(box[side + 2], other[side + 2]) - max(box[side], other[side]) for side in (0, 1))
    return max(wide, 0.0) * max(tall, 0.0)


_BINS = 41  # odd: the middle one is around 0
_ROW = 4  # panels side by side
_SPAN = 0.999  # share of the values, by magnitude, that the scale spans


def draw_histograms(values: Mapping[str, np.ndarray], label: str, width: float = WIDE) -> str:
    """An SVG element: a panel for each name, its values `(n,)` as shares in percent, on one scale around 0."""
    limits = [np.quantile(np.abs(differences), _SPAN) for differences in values.values() if len(differences)]
    edges = np.linspace(-1, 1, _BINS + 1) * (max(limits, default=0.0) or 1e-3)
    columns = min(_ROW if width == WIDE else _ROW // 2, len(values))
    rows = -(-len(values) // columns)
    with matplotlib.rc_context(style(width)):
        figure = bare_figure(width, 0.4 + 1.9 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for (name, differences), axes in zip(values.items(), panels, strict=False):
            _draw_panel(axes, name, differences, edges)
        for axes in panels:  # those that are left
            axes.set_visible(False)
        figure.supxlabel(label, color=MUTED, fontsize=10)
        figure.supylabel("% of the pairs", color=MUTED, fontsize=10)
        return inline(figure, f"Histograms of {label}: {', '.join(values)}")


def _draw_panel(axes: Axes, name: str, values: np.ndarray, edges: np.ndarray) -> None:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    bare(axes)
    axes.bar(edges[:-1], counts / max(len(values), 1) * 100, np.diff(edges), align="edge", color=STUDENT, linewidth=0)
    axes.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    axes.set_title(name, loc="left", color=INK, fontsize=10, fontweight="bold")
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(labelbottom=True)
