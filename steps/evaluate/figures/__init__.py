"""Figures of the report, one class each. A module here adds its figure by being here: see docs/extending.md."""

from collections.abc import Iterator, Mapping
from typing import Any

from slimtower.common.plugins import concrete_subclasses
from steps.evaluate.figures.base import Figure, Measured, RenderContext
from steps.evaluate.formatting import Block
from steps.evaluate.params import EvaluateParams
from steps.evaluate.systems import fusing


def every_figure() -> list[Figure]:
    """All there are, in the order of the report."""
    classes: list[type[Figure]] = concrete_subclasses(__name__, __path__, Figure)
    return sorted((figure() for figure in classes), key=lambda figure: (figure.position, figure.key()))


def measured_figures(params: EvaluateParams) -> list[Figure]:
    """Those that measure something and are no analysis, and the analyses that params.yaml names."""
    own = (figure for figure in every_figure() if type(figure).measure is not Figure.measure)
    return [figure for figure in own if not figure.analysis or figure.key() in params.analyses]


def shown_figures(
    metrics: Mapping[str, Any], measured: Mapping[str, Measured], *, short: bool = False
) -> Iterator[tuple[Figure, list[Block]]]:
    """Every figure that has a value in metrics.json, and its blocks; `short`: those of report.md and the terminal.

    `measured`: what was measured for each, by key; {} where metrics.json alone is at hand.
    """
    for figure in every_figure():
        if metrics.get(figure.key()) and (figure.in_short or not short):
            context = RenderContext(metrics, measured.get(figure.key(), {}), bool(fusing(metrics)))
            yield figure, list(figure.render(metrics[figure.key()], context))
