"""Losses that compare a student's scores of the candidates with a teacher's (EmbedDistill, App. A).

Student's and teacher's scores `(n, m)`, over the candidates that the teacher has scored: all of a batch for the index
teacher and for one that trains along with `joint_candidates: batch`, a text's own for any other and with
`own_candidates`. The temperature T divides the student's scores, T_t the teacher's, which may have other units, as
logits beside cosines do; without T_t it is T. Nothing is multiplied back.

| kind | source |
|---|---|
| score_softmax | EmbedDistill, Eq. 10; listwise: ListNet (Cao et al. 2007) |
| score_binary | Eq. 11 |
| score_squared | Eq. 12 |
| score_kl | response distillation: RD in LEAD, Sec. 4.3.2 |
| score_margin | MarginMSE (Hofstätter et al. 2020, Sec. 3, arXiv:2010.02666) |
"""

import math
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor
from torch.nn import functional

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets, Units
from steps.distill.losses.label import binary_cross_entropy, filled, masked, only, softmax_cross_entropy
from steps.distill.providers import Setting

TELLING = 0.75  # of the entropy of equal shares; a student also ranks the documents of the batch's other texts
TELLING_DOCUMENTS = 8  # those nearest to a text


def _temperature(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if value == "auto" or number:
        return value
    raise ValueError("give auto, or a number above 0")


Temperature = Annotated[float | Literal["auto"], BeforeValidator(_temperature)]


class ScoreLoss(Loss):
    """Base of the losses here."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.SCORES})
    of_shares: ClassVar[bool] = False  # whether it compares distributions over a text's candidates

    temperature: Temperature = 1.0
    """Divides the student's scores."""
    teacher_temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Divides the teacher's scores; null: as the student's. `score` suggests one."""
    own_candidates: bool = False
    """Whether only the scores of a text's own candidates count, where the teacher has scored those of the batch."""

    @model_validator(mode="after")
    def _automatic_of_the_index_alone(self) -> Self:
        automatic = self.temperature == "auto"
        if automatic and (self.teacher or self.teacher_temperature is not None or not self.of_shares):
            raise ValueError(
                "temperature: auto is for distributions of the index's teacher, without a teacher_temperature; give a"
                " number"
            )
        return self

    @property
    def number(self) -> float:
        """The temperature; `auto` has been replaced when a training begins."""
        if self.temperature == "auto":
            raise ValueError("temperature: auto has no number yet")
        return self.temperature

    def automatic(self, setting: Setting) -> dict[str, float]:
        if self.temperature != "auto":
            return {}
        sources = setting.sources
        nearest = sources.nearest(min(TELLING_DOCUMENTS, sources.neighbours))
        vectors = sources.vectors, sources.documents, nearest
        return {"temperature": telling_temperature(*vectors, setting.training, setting.units, cosine=setting.cosine)}

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        scores = targets.scores[self.teacher]
        mask = scores.is_scored & batch.is_own if self.own_candidates else scores.is_scored
        return self.rows(outputs.scores(targets), scores.values, mask, batch.label)

    def rows(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor | None = None) -> Tensor:
        """Loss of each row of `(n, m)` scores; candidates where the mask is False are as if they were not there."""
        student, teacher = masked(student, teacher, mask)
        teacher = teacher / (self.teacher_temperature or self.number)
        return self.compare(student / self.number, teacher, mask, torch.zeros_like(mask) if label is None else label)

    @abstractmethod
    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        """`rows` of both sides, exact, divided by their temperatures, and 0 where the mask is False."""


class ShareLoss(ScoreLoss):
    """Base of those that compare distributions over a text's candidates."""

    of_shares: ClassVar[bool] = True

    temperature: Temperature = 0.05
    """Divides the student's scores. `auto`, with the index's teacher: the temperature at which its distributions over
    the documents nearest to a text have, in the mean, three quarters of the entropy of equal shares.
    """


class ScoreSoftmax(ShareLoss):
    """`-sum_j softmax_j(s^t / T_t) log softmax_j(s^s / T)` (EmbedDistill, Eq. 10)."""

    kind: Literal["score_softmax"]

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        """Equal scores give the entropy of the teacher's distribution, not 0."""
        return softmax_cross_entropy(student, functional.softmax(only(teacher, mask), dim=1), mask)


class ScoreBinary(ScoreLoss):
    """Eq. 9 with `sigmoid(s^t / T_t)` as label of `s^s / T`, one against all (EmbedDistill, Eq. 11)."""

    kind: Literal["score_binary"]

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        """Equal scores give the entropies of the teacher's labels, not 0."""
        return binary_cross_entropy(student, torch.sigmoid(teacher), mask)


class ScoreSquared(ScoreLoss):
    """`sum_j (s^t_j / T_t - s^s_j / T)^2` (EmbedDistill, Eq. 12)."""

    kind: Literal["score_squared"]

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        return (student - teacher).square().sum(dim=1)


class ScoreKl(ShareLoss):
    """`KL(softmax(s^t / T_t), softmax(s^s / T))` over the candidates (LEAD, Eq. 6, of the output layers)."""

    kind: Literal["score_kl"]

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        log_taught = filled(functional.log_softmax(only(teacher, mask), dim=1), mask, 0)
        taught = filled(log_taught.exp(), mask, 0)
        return (taught * log_taught).sum(dim=1) + softmax_cross_entropy(student, taught, mask)


class ScoreMargin(ScoreLoss):
    """`mean_j ((s^s_+ - s^s_j) / T - (s^t_+ - s^t_j) / T_t)^2` over the other candidates j (MarginMSE).

    The positive is a text's label where the teacher has scored it, else the candidate that the teacher finds best.
    """

    kind: Literal["score_margin"]

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        """0 for a text with fewer than two scored candidates."""
        preferred = teacher.masked_fill(~mask, -torch.inf).masked_fill(label & mask, torch.inf)
        if not mask.shape[1]:
            return (student + teacher).sum(dim=1)
        positive = preferred.argmax(dim=1, keepdim=True)
        negatives = mask.scatter(1, positive, False)
        margins = (student.gather(1, positive) - student) - (teacher.gather(1, positive) - teacher)
        total = margins.square().masked_fill(~negatives, 0).sum(dim=1)
        return total / negatives.sum(dim=1).clamp(min=1)


def telling_temperature(
    vectors: np.ndarray, documents: np.ndarray, nearest: np.ndarray, rows: np.ndarray, units: Units, *, cosine: bool
) -> float:
    """The temperature at which the teacher's distributions over a text's nearest documents have TELLING of the entropy
    of equal shares, in the mean of an even sample of `rows`; the losses' default if none tells documents apart.

    Vectors `(texts, dim)` and `(documents, dim)`, rows of the documents `nearest` to each text `(texts, k)`.
    """
    from steps.retrieval.target_entropy import Sample, suggested_temperature  # SciPy: params are read without it

    sample = Sample(len(rows), 2_000)
    sample.add(rows)
    queries = vectors[sample.all()].astype(np.float64)
    candidates = documents[nearest[sample.all()]].astype(np.float64)
    scores = np.einsum("td,tkd->tk", queries, candidates)
    if cosine:
        scores /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(candidates, axis=2)
    else:
        scores /= units.queries * units.documents
    return suggested_temperature(scores, TELLING) or 0.05
