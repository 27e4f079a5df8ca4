"""The forms in which an encoder may serve, what each costs, and the choice: the first that costs little enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steps.release.evidence import Loss
from steps.release.export import Format, Precision
from steps.release.parity import Unjudged
from steps.release.quality import Cost

FORMS: dict[Format, tuple[Precision, ...]] = {"onnx": ("int8", "mixed", "fp32"), "table": ("int8", "fp32")}


@dataclass(frozen=True)
class Limits:
    """What a form may cost: as a share of all dev queries' nDCG@10 alone, with the index, and as a mean cosine."""

    parity: float
    total: float
    cosine: float


@dataclass(frozen=True)
class Trial:
    """One form of the encoder as it was measured.

    `served`: its embeddings `(texts, dim)`. `parity`: its loss over the dev queries of all data sets, on the exact
    index, None where none is judged. `costs`: by data set, with the index that serves. `unjudged`: closeness to the
    student, by data set with too few judged dev queries.
    """

    precision: Precision
    bytes: int
    served: np.ndarray
    cosine_mean: float
    cosine_min: float
    parity: Loss | None
    costs: Mapping[str, Cost]
    unjudged: Mapping[str, Unjudged]

    def objection(self, limits: Limits) -> str:
        """Why another form should be tried: the first limit that this one passes, as measured; empty for none."""
        if self.parity and not self.parity.within:
            return f"loses {self.parity}"
        for dataset, cost in self.costs.items():
            if not cost.total.within and cost.costliest == "precision":
                return f"on {dataset!r}, with the index, loses {cost.total}"
        for dataset, close in self.unjudged.items():
            if not close.served_cosine_mean >= limits.cosine:
                return f"has mean cosine {close.served_cosine_mean:.4f} to the student on {dataset!r}"
        return ""

    def as_dict(self, limits: Limits) -> dict[str, Any]:
        """What the report keeps of it."""
        return {
            "precision": self.precision,
            "bytes": self.bytes,
            "served_cosine_mean": self.cosine_mean,
            "served_cosine_min": self.cosine_min,
            "parity": self.parity.as_dict() if self.parity else None,
            "dev": {dataset: cost.as_dict() for dataset, cost in self.costs.items()},
            "unjudged": {dataset: close.as_dict() for dataset, close in self.unjudged.items()},
            "objection": self.objection(limits),
        }


def to_try(form: Format, precision: str) -> tuple[Precision, ...]:
    """The forms to try, smallest and quickest first: all of them for `auto`, else the one that `precision` names.

    A table has no products, of which some could be kept in fp32: `mixed` is its int8.
    """
    selected = "int8" if form == "table" and precision == "mixed" else precision
    return (
        FORMS[form] if precision == "auto" else tuple(candidate for candidate in FORMS[form] if candidate == selected)
    )


def explain(trials: Sequence[Trial], limits: Limits) -> str:
    """One line: what serves, why nothing smaller does, and what speaks against it if no other form was left."""
    *refused, chosen = trials
    reasons = [f"{trial.precision} {trial.objection(limits)}" for trial in refused]
    size = f"{chosen.precision} serves ({chosen.bytes / 1e6:.0f} MB, mean cosine {chosen.cosine_mean:.4f})"
    caveats = [f"kept, though it {objection}"] if (objection := chosen.objection(limits)) else []
    return "; ".join([size, *caveats, *reasons])
