"""The laws as a picture: entropy by size, by data, and the joint law over both with the cell that it foretells."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from bench.scaling.described import HELD_OUT
from bench.scaling.laws import JointLaw, PowerLaw
from steps.evaluate.drawing import INK, MUTED, STUDENT, STYLE, TEACHER, bare, bare_figure, inline


def draw_laws(cells: Sequence[Mapping[str, Any]], laws: Mapping[str, Any]) -> str:
    """An SVG element for inlining, of cells and laws as bench/results/scaling.json has them."""
    grid = [cell for cell in cells if cell["size"] != HELD_OUT]
    held_out = next(cell for cell in cells if cell["size"] == HELD_OUT)
    most_pairs = max(cell["pairs"] for cell in grid)
    largest = max(cell["parameters"] for cell in grid)
    by_size = [cell for cell in grid if cell["pairs"] == most_pairs]
    by_data = [cell for cell in grid if cell["parameters"] == largest]
    joint = JointLaw(**_coefficients(laws["joint"]))
    with matplotlib.rc_context(STYLE):
        figure = bare_figure(11, 3.8)
        size_axes, data_axes, joint_axes = figure.subplots(1, 3, sharey=True)
        _power(
            size_axes, by_size, "parameters", PowerLaw(**_coefficients(laws["size"])), "parameters without embeddings"
        )
        _power(
            data_axes, by_data, "pairs", PowerLaw(**_coefficients(laws["data"])), f"triplets, {largest:,} parameters"
        )
        for size in dict.fromkeys(cell["size"] for cell in [*grid, held_out]):
            size_cells = [cell for cell in cells if cell["size"] == size]
            colour = TEACHER if size == HELD_OUT else STUDENT
            along = np.geomspace(min(cell["pairs"] for cell in grid), held_out["pairs"], 60)
            joint_axes.plot(along, joint.at(np.full(60, size_cells[0]["parameters"]), along), color=colour, linewidth=1)
            joint_axes.plot(
                [c["pairs"] for c in size_cells], [c["entropy"] for c in size_cells], "o", color=colour, markersize=5
            )
        joint_axes.annotate("held out", (held_out["pairs"], held_out["entropy"]), xytext=(-8, -12), ha="right",
                       textcoords="offset points", color=INK)  # fmt: skip
        _frame(joint_axes, "triplets, a line a size", joint.r2)
        size_axes.set_ylabel("contrastive entropy, nats", color=MUTED)
        return inline(figure, "ScalingNote's laws of size, of data and of both, fitted to contrastive entropies")


def _power(axes: Axes, cells: Sequence[Mapping[str, Any]], key: str, law: PowerLaw, label: str) -> None:
    x = np.array([cell[key] for cell in cells], dtype=np.float64)
    along = np.geomspace(x.min(), x.max(), 60)
    axes.plot(along, law.at(along), color=STUDENT, linewidth=1)
    axes.plot(x, [cell["entropy"] for cell in cells], "o", color=STUDENT, markersize=5)
    _frame(axes, label, law.r2)


def _frame(axes: Axes, label: str, r2: float) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label, color=MUTED)
    axes.set_title(f"R² {r2:.3f}", color=INK, fontsize=10)
    bare(axes)


def _coefficients(law: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in law.items() if name != "points"}
