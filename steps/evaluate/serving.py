"""What serving costs on test queries: in PyTorch, exported over the exact index, and as served."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from steps.core.towers import encode
from steps.evaluate.latency import Encode
from steps.evaluate.scoring import Scored, score
from steps.evaluate.student_tower import student_tower
from steps.evaluate.systems import dense_search
from steps.serving.dims import cut
from steps.serving.release import Release

K = 10


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


def measure_serving(
    releases: Mapping[str, Release], scored: Mapping[str, Sequence[Scored]]
) -> dict[str, dict[str, ServingCost]]:
    """`result[dataset][student]`; `scored` holds each student's test scores over the exact index."""
    result: dict[str, dict[str, ServingCost]] = {}
    for student, release in releases.items():
        model = tower_encoder(release)
        for item in scored[student]:
            asked = item.questions
            before = score(f"{student}, PyTorch", dense_search(model, release), asked, K)
            after = score(f"{student}, served", dense_search(release.encode, release, "ann"), asked, K)
            result.setdefault(asked.dataset, {})[student] = ServingCost(
                *(float(np.mean(each.values["nDCG@10"])) for each in (before, item, after))
            )
    return result


def tower_encoder(release: Release) -> Encode:
    """The release's student in fp32, as trained."""
    tower = student_tower(release)
    return lambda texts: cut(encode(tower, texts, "query"), release.manifest.width)
