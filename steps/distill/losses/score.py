"""Losses that compare a student's scores with its teacher's for the same candidates (EmbedDistill, App. A).

Every loss takes student and teacher scores and, where some candidates do not count, a mask, all `(batch, candidates)`,
and returns a scalar: the mean over the queries with a candidate that counts, 0 when none has.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from steps.distill.losses.label import CandidateLoss, binary_cross_entropy, only, softmax_cross_entropy


class ScoreLoss(CandidateLoss):
    """Base of the losses here: the temperature."""

    def __init__(self, temperature: float = 1.0) -> None:
        """`temperature` T divides both sides' scores, and nothing is multiplied back; ValueError if not above 0."""
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature {temperature}: must be above 0 and finite")
        self.temperature = temperature


class SoftmaxScores(ScoreLoss):
    """`-sum_j softmax_j(s^t / T) log softmax_j(s^s / T)` (EmbedDistill, Eq. 10)."""

    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`; equal scores give the entropy of the teacher's distribution, not 0."""
        soft = functional.softmax(only(targets / self.temperature, mask), dim=1)
        return softmax_cross_entropy(scores / self.temperature, soft, mask)


class BinaryScores(ScoreLoss):
    """Eq. 9 with `sigmoid(s^t / T)` as label of `s^s / T`, one against all (EmbedDistill, Eq. 11)."""

    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`; equal scores give the entropies of the teacher's labels, not 0."""
        return binary_cross_entropy(scores / self.temperature, torch.sigmoid(targets / self.temperature), mask)


class LogitMatching(ScoreLoss):
    """`sum_j (s^t_j / T - s^s_j / T)^2` (EmbedDistill, Eq. 12)."""

    def distance(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Loss of each query, `(batch,)`."""
        return ((scores - targets) / self.temperature).square().sum(dim=1)
