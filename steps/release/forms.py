"""The forms in which an encoder may serve: each is measured on dev queries until one costs little enough."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import folder_bytes
from slimtower.serving.checks import embed_each
from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import Release
from steps.core.cosines import cosines
from steps.core.judged import JudgedSet
from steps.release.export import Format, Precision, convert
from steps.release.parity import Unjudged, closeness
from steps.release.quality import Cost, Loss, cost_of, measured_loss, ndcg, rows_of

FORMS: dict[Format, tuple[Precision, ...]] = {"onnx": ("int8", "mixed", "fp32"), "table": ("int8", "fp32")}


@dataclass(frozen=True)
class Limits:
    """What a form may cost.

    `parity`: share of dev nDCG@10 that export and precision cost together, on the exact index. `total`: share that
    export, precision and the approximate index cost together, on each data set. The stage fails where dev queries prove
    that more is lost. `cosine`: least mean cosine to the student over texts of a data set with too few judged dev
    queries. On the demo int8 reaches 0.998 (4l) to 0.9999 (static); every coarser export that lost more than 0.5 % was
    at 0.992 or less.
    """

    parity: float = 0.005
    total: float = 0.01
    cosine: float = 0.993


LIMITS = Limits()


@dataclass(frozen=True)
class Trial:
    """One form of the encoder as it was measured.

    `served`: its embeddings `(texts, dim)`. `parity`: its loss over all judged dev queries, exact index. `costs`: by
    data set, with the index that serves. `unjudged`: closeness to the student where too few dev queries are judged.
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
            "unjudged": {dataset: asdict(close) for dataset, close in self.unjudged.items()},
            "objection": self.objection(limits),
        }


def to_try(form: Format, precision: str) -> tuple[Precision, ...]:
    """The forms to try, smallest and quickest first: all for `auto`, else one; a table's `mixed` is its int8."""
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


@dataclass(frozen=True)
class Bench:
    """What forms are measured on: the release's index, and texts as the student and its fp32 export embed them.

    `texts` are those of the judged queries, then the samples of data sets with too few, then the probes; `model` and
    `exported` are their embeddings `(texts, dim)`. `few` says of each sampled data set why it is.
    """

    release: Release
    queries: Sequence[JudgedSet]
    samples: Mapping[str, Sequence[str]]
    few: Mapping[str, str]
    texts: Sequence[str]
    model: np.ndarray
    exported: np.ndarray

    def trials(self, folder: Path, form: Format, precision: str, limits: Limits, calibration: list[str]) -> list[Trial]:
        """Write forms below `folder` until one has no objection; returns them all. `calibration`: texts for int8."""
        trials: list[Trial] = []
        model, exported = (ndcg(self.release, self.queries, vectors, "flat") for vectors in (self.model, self.exported))
        for candidate in to_try(form, precision):
            convert(self.release.folder / "serving", folder / candidate, form, candidate, calibration)
            trials.append(self._trial(folder / candidate, candidate, model, exported, limits))
            if not trials[-1].objection(limits):
                break
        return trials

    def _trial(
        self, serving: Path, precision: Precision, model: list[np.ndarray], exported: list[np.ndarray], limits: Limits
    ) -> Trial:
        served = embed_each(load_query_encoder(serving).encode, self.texts)
        exact, approximate = (ndcg(self.release, self.queries, served, kind) for kind in ("flat", "ann"))
        values = zip(model, exported, exact, approximate, strict=True)
        sampled = rows_of([*self.queries, *self.samples.values()])[len(self.queries) :]
        close = np.nan_to_num(cosines(served, self.model), nan=-1.0)
        return Trial(
            precision=precision,
            bytes=folder_bytes(serving),
            served=served,
            cosine_mean=float(close.mean()),
            cosine_min=float(close.min()),
            parity=measured_loss(np.concatenate(model), np.concatenate(exact), limits.parity) if model else None,
            costs={
                judged.dataset: cost_of(*each, limits.total) for judged, each in zip(self.queries, values, strict=True)
            },
            unjudged={
                dataset: closeness(dataset, self.few[dataset], self.model[rows], served[rows])
                for dataset, rows in zip(self.samples, sampled, strict=True)
            },
        )
