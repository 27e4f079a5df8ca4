"""Losses that compare a student's scores of the candidates with labels (EmbedDistill, App. A).

Student's scores `(n, m)` against labels `(n, m)`, over the candidates that count, with `own_candidates` those of them
that are a text's own; texts without a label are not in the mean.

| kind | source |
|---|---|
| label_softmax | EmbedDistill, Eq. 8 |
| label_binary | Eq. 9 |
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets, exact


class LabelLoss(Loss):
    """Base of the losses here."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.LABELS})

    temperature: float = Field(default=1.0, gt=0)
    """Divides the scores."""
    own_candidates: bool = False
    """Whether only a text's own candidates are its negatives, not those of the batch."""

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        scores = outputs.scores(targets) / self.temperature
        labels = batch.label.to(scores.dtype)
        mask = batch.counts & batch.is_own if self.own_candidates else batch.counts
        return torch.where(batch.labelled, self.rows(scores, labels, mask), 0)

    @abstractmethod
    def rows(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Loss of each row of `(n, m)` scores; candidates where the mask is False are as if they were not there."""


class LabelSoftmax(LabelLoss):
    """`-sum_j y_j log softmax_j(s / T)` (EmbedDistill, Eq. 8)."""

    kind: Literal["label_softmax"]
    temperature: float = Field(default=0.05, gt=0)
    """Divides the scores."""

    def rows(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return softmax_cross_entropy(scores, labels, mask)


class LabelBinary(LabelLoss):
    """`-sum_j (y_j log sigmoid(s_j) + (1 - y_j) log sigmoid(-s_j))`, one against all (EmbedDistill, Eq. 9)."""

    kind: Literal["label_binary"]

    def rows(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return binary_cross_entropy(scores, labels, mask)


def softmax_cross_entropy(scores: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """`-sum_j w_j log softmax_j(s)` of each row of `(n, m)`, `(n,)`."""
    scores, weights = masked(scores, weights, mask)
    log_shares = filled(functional.log_softmax(only(scores, mask), dim=1), mask, 0)
    return -(weights * log_shares).sum(dim=1)


def binary_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """`-sum_j (y_j log sigmoid(s_j) + (1 - y_j) log sigmoid(-s_j))` of each row of `(n, m)`, `(n,)`."""
    scores, labels = masked(scores, labels, mask)
    terms = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    return filled(terms, mask, 0).sum(dim=1)


def masked(scores: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides, exact, and 0 where the mask is False, whatever was there; ValueError for other shapes."""
    if scores.shape != targets.shape or scores.ndim != 2:
        raise ValueError(
            f"scores {tuple(scores.shape)} and targets {tuple(targets.shape)} differ in shape, or are not"
            " (batch, candidates)"
        )
    if mask.shape != scores.shape or mask.dtype != torch.bool:
        raise ValueError(f"mask {tuple(mask.shape)} {mask.dtype}: must be {tuple(scores.shape)} torch.bool")
    scores, targets = exact(scores, targets)
    return filled(scores, mask, 0), filled(targets, mask, 0)


def only(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores `(n, m)` whose softmax gives nothing to candidates where the mask is False."""
    return filled(scores, mask, torch.finfo(scores.dtype).min)  # not -inf: NaN in a row that has no candidate


def filled(values: Tensor, mask: Tensor, value: float) -> Tensor:
    """The values, and `value` where the mask is False."""
    if mask.device.type == "cpu" and bool(mask.all()):  # a copy would cost as much as the softmax
        return values
    return values.masked_fill(~mask, value)
