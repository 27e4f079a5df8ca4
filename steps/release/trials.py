"""Each form of the encoder, measured on dev queries until one costs no more than the limits allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slimtower.common.files import folder_bytes
from slimtower.serving.checks import embed_each
from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import Release
from steps.core.cosines import cosines
from steps.core.judged import JudgedSet
from steps.release.evidence import measured_loss
from steps.release.export import Format, Precision, convert
from steps.release.forms import Limits, Trial, to_try
from steps.release.parity import Unjudged, closeness
from steps.release.quality import Values, cost_of, ndcg


@dataclass(frozen=True)
class Bench:
    """What forms are measured on: the release's index, and texts as the student and its fp32 export embed them.

    `texts` are those of the judged queries, then the samples of data sets with too few, then the probes; `model` and
    `exported` are their embeddings `(texts, dim)`. `few` says of each sampled data set why it is. The release's encoder
    is the fp32 export.
    """

    release: Release
    queries: Sequence[JudgedSet]
    samples: Mapping[str, Sequence[str]]
    few: Mapping[str, str]
    texts: Sequence[str]
    model: np.ndarray
    exported: np.ndarray

    def trials(self, folder: Path, form: Format, precision: str, limits: Limits, calibration: list[str]) -> list[Trial]:
        """Write forms below `folder` until one has no objection, or the last was tried; returns them all.

        Of a precision other than `auto` there is one form. int8 is calibrated on the texts `calibration`.
        """
        trials: list[Trial] = []
        model, exported = (self._ndcg(vectors, "flat") for vectors in (self.model, self.exported))
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
        exact, approximate = (self._ndcg(served, kind) for kind in ("flat", "ann"))
        per_dataset = zip(self.queries, model, exported, exact, approximate, strict=True)
        close = np.nan_to_num(cosines(served, self.model), nan=-1.0)
        return Trial(
            precision=precision,
            bytes=folder_bytes(serving),
            served=served,
            cosine_mean=float(close.mean()),
            cosine_min=float(close.min()),
            parity=measured_loss(np.concatenate(model), np.concatenate(exact), limits.parity) if model else None,
            costs={judged.dataset: cost_of(Values(*values), limits.total) for judged, *values in per_dataset},
            unjudged=self._unjudged(served),
        )

    def _ndcg(self, vectors: np.ndarray, kind: str) -> list[np.ndarray]:
        return ndcg(self.release, self.queries, vectors, kind)

    def _unjudged(self, served: np.ndarray) -> dict[str, Unjudged]:
        unjudged, start = {}, sum(len(judged.query_ids) for judged in self.queries)
        for dataset, sample in self.samples.items():
            rows = slice(start, start + len(sample))
            unjudged[dataset] = closeness(dataset, self.few[dataset], self.model[rows], served[rows])
            start += len(sample)
        return unjudged
