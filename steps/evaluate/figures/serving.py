"""What serving costs on test queries: in PyTorch, exported over the exact index, and as served."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from steps.core.measures import NDCG
from steps.evaluate.figures.base import Figure, Part, RenderContext, model_table
from steps.evaluate.formatting import Block, percent
from steps.evaluate.scoring import Scored, score
from steps.evaluate.systems import Student, dense_search, remembering

K = 10


class Serving(Figure):
    """`serving.<set>.<student>` of metrics.json: mean test nDCG@10 after each step from training to what serves.

    `model` in PyTorch and fp32, `exact` exported, both over the exact index, `served` exported over the index that
    serves; `lost`: the share of `model` that `served` lacks.
    """

    title = "From training to service"
    part: ClassVar[Part] = "speed"
    position = 1

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "nDCG@10 of the student as trained (fp32, exact index), after export and quantisation, and with the index"
            " that serves."
        )
        yield model_table(
            ["student", "as trained", "exported", "as served", "lost"],
            value,
            lambda cost: [*(f"{cost[step]:.4f}" for step in ("model", "exact", "served")), percent(cost["lost"])],
        )


def measure_serving(student: Student, scored: Sequence[Scored]) -> dict[str, dict[str, float]]:
    """By data set; `scored` are the student's test scores as exported, over the exact index."""
    costs, release = {}, student.release
    for item in scored:
        trained = dense_search(remembering(student.trained), release)
        before = score(f"{student.name}, PyTorch", trained, item.judged, K, exact=True)
        answering = dense_search(remembering(student.encode), release, "ann")
        exact = "ann" not in release.kinds(item.judged.dataset)
        after = score(f"{student.name}, served", answering, item.judged, K, exact=exact)
        model, exported, served = (float(np.mean(step.values[NDCG])) for step in (before, item, after))
        lost = 1 - served / model if model else 0.0
        costs[item.judged.dataset] = {"model": model, "exact": exported, "served": served, "lost": lost}
    return costs
