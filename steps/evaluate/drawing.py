"""What the report's drawings share: colours of the page, a bare figure, and the way into it."""

import html
import io
import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that occur nowhere else in a drawing; each becomes a variable of the page, which knows light and dark.
INK, MUTED, GRID, STUDENT, TEACHER, CARD = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#101112"
WIDE, NARROW = 8.8, 4.4  # inches: for a screen, and for a phone
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "slimtower",
    "font.family": "sans-serif",
    "font.size": 10,
}
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    STUDENT: "var(--student)",
    TEACHER: "var(--teacher)",
    CARD: "var(--card)",
}


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
    """The figure as an svg element, scaled by the page, colours as variables; screen readers read out `description`.

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
        svg = svg.replace(colour, variable)
    return svg
