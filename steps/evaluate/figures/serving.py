"""What serving costs on test queries: in PyTorch, exported over the exact index, and as served."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from steps.core.measures import NDCG
from steps.evaluate.figures.base import Figure, Part, RenderContext, cells
from steps.evaluate.formatting import Block, Table, percent
from steps.evaluate.scoring import Scored, score
from steps.evaluate.systems import Student, dense_search, remembering

K = 10


class Serving(Figure):
    """`serving.<set>.<student>` of metrics.json: `model`, `exact`, `served` and `lost` of `ServingCost`."""

    title = "From training to service"
    part: ClassVar[Part] = "speed"
    position = 1

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        """A row a student."""
        yield (
            "nDCG@10 of the student as trained (fp32, exact index), after export and quantisation, and with the index"
            " that serves."
        )
        yield Table(
            ["data set", "student", "as trained", "exported", "as served", "lost"],
            [
                [
                    dataset,
                    student,
                    *(f"{cost[step]:.4f}" for step in ("model", "exact", "served")),
                    percent(cost["lost"]),
                ]
                for dataset, student, cost in cells(value)
            ],
        )


@dataclass(frozen=True)
class ServingCost:
    """Mean test nDCG@10 of one student on one data set after each step from its training to what serves."""

    model: float
    """fp32, in PyTorch, over the exact index."""
    exact: float
    """The exported encoder over the exact index."""
    served: float
    """The exported encoder over the index that serves."""

    def as_dict(self) -> dict[str, float]:
        """Key of metrics.json -> value; `lost` is the share of `model` that `served` lacks."""
        return asdict(self) | {"lost": 1 - self.served / self.model if self.model else 0.0}


def measure_serving(student: Student, scored: Sequence[Scored]) -> dict[str, ServingCost]:
    """By data set; `scored` are the student's test scores as exported, over the exact index."""
    costs: dict[str, ServingCost] = {}
    for item in scored:
        trained = dense_search(remembering(student.trained), student.release)
        before = score(f"{student.name}, PyTorch", trained, item.judged, K, exact=True)
        served = dense_search(remembering(student.encode), student.release, "ann")
        exact = "ann" not in student.release.kinds(item.judged.dataset)
        after = score(f"{student.name}, served", served, item.judged, K, exact=exact)
        means = (float(np.mean(step.values[NDCG])) for step in (before, item, after))
        costs[item.judged.dataset] = ServingCost(*means)
    return costs
