"""Losses that compare a student's scores of the candidates with a teacher's (EmbedDistill, App. A).

Student's and teacher's scores `(n, m)`, over the candidates that the teacher has scored: all of a batch for the index
teacher, a text's own for any other. The temperature T divides both sides' scores, and nothing is multiplied back.

| kind | source |
|---|---|
| score_softmax | EmbedDistill, Eq. 10 |
| score_binary | Eq. 11 |
| score_squared | Eq. 12 |
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets
from steps.distill.losses.label import binary_cross_entropy, masked, only, softmax_cross_entropy, student_scores


class ScoreLoss(Loss):
    """Base of the losses here."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.SCORES})

    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        """Value of each text, `(n,)`; 0 for one without a scored candidate."""
        scores = targets.scores[self.teacher]
        return self.rows(student_scores(outputs, targets), scores.values, scores.known)

    @abstractmethod
    def rows(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Loss of each row of `(n, m)` scores; candidates where the mask is False are as if they were not there."""


class ScoreSoftmax(ScoreLoss):
    """`-sum_j softmax_j(s^t / T) log softmax_j(s^s / T)` (EmbedDistill, Eq. 10)."""

    kind: Literal["score_softmax"]
    temperature: float = Field(default=0.05, gt=0, allow_inf_nan=False)

    def rows(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Loss of each row, `(n,)`; equal scores give the entropy of the teacher's distribution, not 0."""
        student, teacher = masked(student, teacher, mask)
        soft = functional.softmax(only(teacher / self.temperature, mask), dim=1)
        return softmax_cross_entropy(student / self.temperature, soft, mask)


class ScoreBinary(ScoreLoss):
    """Eq. 9 with `sigmoid(s^t / T)` as label of `s^s / T`, one against all (EmbedDistill, Eq. 11)."""

    kind: Literal["score_binary"]

    def rows(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Loss of each row, `(n,)`; equal scores give the entropies of the teacher's labels, not 0."""
        student, teacher = masked(student, teacher, mask)
        return binary_cross_entropy(student / self.temperature, torch.sigmoid(teacher / self.temperature), mask)


class ScoreSquared(ScoreLoss):
    """`sum_j (s^t_j / T - s^s_j / T)^2` (EmbedDistill, Eq. 12)."""

    kind: Literal["score_squared"]

    def rows(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Loss of each row, `(n,)`."""
        student, teacher = masked(student, teacher, mask)
        return ((student - teacher) / self.temperature).square().sum(dim=1)
