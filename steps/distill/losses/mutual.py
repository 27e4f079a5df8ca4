"""Losses of a student and a teacher that train together (LEAD, Sec. 3.4); a frozen teacher serves the first too.

| kind | needs | source |
|---|---|---|
| mutual_kl | student's and teacher's scores `(n, m)` | LEAD, Eq. 9 |
| teacher_label_softmax | the scores of a teacher that trains, labels | LEAD, Eq. 10 |

The student's own label loss, Eq. 11, is label_softmax.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets
from steps.distill.losses.label import softmax_cross_entropy
from steps.distill.losses.layer import divergence
from steps.distill.losses.score import ShareLoss


class MutualKL(ShareLoss):
    """`KL(softmax(t / T_t) || softmax(s / T)) + KL(softmax(s / T) || softmax(t / T_t))` (LEAD, Eq. 9, of one T).

    `reverse: false` leaves the second one out, as LEAD does where the teacher is frozen (Sec. 4.5).
    """

    moves_teacher: ClassVar[bool] = True

    kind: Literal["mutual_kl"]
    reverse: bool = True
    """Whether the second term counts."""

    def compare(self, student: Tensor, teacher: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        there = divergence(teacher, student, mask)
        return there + divergence(student, teacher, mask) if self.reverse else there


class TeacherLabelSoftmax(Loss):
    """`-sum_j y_j log softmax_j(t / T)`: a teacher that trains along learns the labels (LEAD, Eq. 10).

    Over the candidates that it scored and that count for a text: of the index teacher all of the batch.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.LABELS, Need.JOINT})
    moves_teacher: ClassVar[bool] = True
    undivided: ClassVar[str] = "trains the teacher"

    kind: Literal["teacher_label_softmax"]
    """`teacher` names the one that trains along: that of the index, a late_interaction or a cross_encoder."""
    temperature: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Divides the scores."""

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        teacher_scores = targets.scores[self.teacher]
        scores = teacher_scores.values / self.temperature
        losses = softmax_cross_entropy(scores, batch.label.to(scores.dtype), batch.counts & teacher_scores.is_scored)
        return torch.where(batch.labelled, losses, 0)
