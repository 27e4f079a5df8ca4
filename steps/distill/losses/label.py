"""Losses that compare a student's scores with labels (EmbedDistill, App. A).

Every loss takes scores, labels and, where some candidates do not count, a mask, all `(batch, candidates)`, and returns
a scalar: the mean over the queries that have something to learn from, 0 when none has.

| loss | labels | queries in the mean |
|---|---|---|
| SoftmaxCrossEntropy | weights of the candidates | those with a label other than 0 on a candidate that counts |
| BinaryCrossEntropy | 0 to 1 for each candidate | those with a candidate that counts |
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional


class CandidateLoss(nn.Module, ABC):
    """Base of the losses over candidate lists: shapes, masks and the mean.

    It is computed in float32, in float64 where one side is.
    """

    def forward(self, scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean over the queries; `targets` are labels or a teacher's scores.

        `mask` is True for the candidates that count, None for all. The others, whatever their score (NaN included), get
        no probability, no term in a sum and no gradient. ValueError for other shapes and a mask that is not boolean.
        """
        if scores.shape != targets.shape or scores.ndim != 2:
            raise ValueError(
                f"scores {tuple(scores.shape)} and targets {tuple(targets.shape)} differ in shape, or are not"
                " (batch, candidates)"
            )
        if mask is None:
            mask = torch.ones_like(scores, dtype=torch.bool)
        elif mask.shape != scores.shape or mask.dtype != torch.bool:
            raise ValueError(f"mask {tuple(mask.shape)} {mask.dtype}: must be {tuple(scores.shape)} torch.bool")
        dtype = torch.promote_types(torch.promote_types(scores.dtype, targets.dtype), torch.float32)
        scores, targets = (side.to(dtype).masked_fill(~mask, 0) for side in (scores, targets))
        return self.distance(scores, targets, mask).sum() / self.counts(targets, mask).sum().clamp(min=1)

    @abstractmethod
    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`, 0 for one that does not count; both sides are 0 where the mask is False."""

    def counts(self, targets: Tensor, mask: Tensor) -> Tensor:
        """Which queries are in the mean, boolean `(batch,)`."""
        return mask.any(dim=1)


class SoftmaxCrossEntropy(CandidateLoss):
    """`-sum_j y_j log softmax_j(s)` (EmbedDistill, Eq. 8)."""

    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`."""
        return softmax_cross_entropy(scores, targets, mask)

    def counts(self, targets: Tensor, mask: Tensor) -> Tensor:
        """Queries with a label: without one the sum is empty and would only dilute the others."""
        return (targets != 0).any(dim=1)


class BinaryCrossEntropy(CandidateLoss):
    """`-sum_j (y_j log sigmoid(s_j) + (1 - y_j) log sigmoid(-s_j))`, one against all (EmbedDistill, Eq. 9)."""

    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`."""
        return binary_cross_entropy(scores, targets, mask)


def only(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores `(batch, candidates)` whose softmax gives nothing to candidates where the mask is False."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # not -inf: NaN in a row that has no candidate


def softmax_cross_entropy(scores: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """`-sum_j w_j log softmax_j(s)` of each row, `(batch,)`."""
    return -(weights * functional.log_softmax(only(scores, mask), dim=1).masked_fill(~mask, 0)).sum(dim=1)


def binary_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """`-sum_j (y_j log sigmoid(s_j) + (1 - y_j) log sigmoid(-s_j))` of each row, `(batch,)`."""
    terms = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    return terms.masked_fill(~mask, 0).sum(dim=1)
