"""Histograms on one scale as inline SVG, a small panel each."""

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from steps.evaluate.drawing import INK, MUTED, STUDENT, WIDE, bare, bare_figure, inline, style

_BINS = 41  # odd: the middle one is around 0
_ROW = 4  # panels side by side
_SPAN = 0.999  # share of the values, by magnitude, that the scale spans


def draw_histograms(values: Mapping[str, np.ndarray], label: str, width: float = WIDE) -> str:
    """An SVG element for inlining: a panel for each name, its values `(n,)` as shares in percent.

    All have one scale around 0, whose first and last bars hold what lies beyond.
    """
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
