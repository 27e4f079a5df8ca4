"""Losses that compare a student's embedding with its teacher's for the same text.

Every loss takes student and teacher `(batch, dim)` and returns a scalar, the mean over the batch.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class EmbeddingLoss(nn.Module, ABC):
    """Base of the losses here: checks that both sides have one shape."""

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean over the batch of the distance of each pair; ValueError when the shapes differ."""
        if student.shape != teacher.shape:
            raise ValueError(f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ in shape")
        return self.distance(student.float(), teacher.float()).mean()

    @abstractmethod
    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Distance of each pair, `(batch,)`."""


class SquaredError(EmbeddingLoss):
    """`||e_q^t - e_q^s||^2`: query-encoder alignment (Sec. 3.3), summed over dimensions."""

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Squared L2 distance of each pair, `(batch,)`."""
        return (student - teacher).square().sum(dim=1)


class L2(EmbeddingLoss):
    """`||e_q^t - e_q^s||`: embedding matching of queries (EmbedDistill, Eq. 5), not squared."""

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """L2 distance of each pair, `(batch,)`; its gradient is 0 where both are equal."""
        return torch.linalg.vector_norm(student - teacher, dim=1)


class Cosine(EmbeddingLoss):
    """`1 - cos(e_q^t, e_q^s)`: direction alone, for students whose length means nothing."""

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """One minus the cosine of each pair, `(batch,)`."""
        return 1 - nn.functional.cosine_similarity(student, teacher, dim=1)


LOSSES: dict[str, type[EmbeddingLoss]] = {"squared_error": SquaredError, "l2": L2, "cosine": Cosine}
