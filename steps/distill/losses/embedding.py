"""Losses that compare a student's embedding with its teacher's for the same text.

Every loss takes student and teacher `(batch, dim)` and returns a scalar, the mean over the batch. It is computed in
float32, in float64 where one side is.

| loss | source |
|---|---|
| SquaredError | query-encoder alignment, Sec. 3.3 |
| L2 | EmbedDistill, Eq. 5: queries; with documents Eq. 4 |
| Cosine | |
| QueryDistillation | ScalingNote, Eq. 15 |
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class EmbeddingLoss(nn.Module, ABC):
    """Base of the losses here: checks that both sides have one shape."""

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean over the batch of the distance of each pair; ValueError when the shapes differ."""
        if student.shape != teacher.shape or student.ndim != 2:
            raise ValueError(
                f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ in shape, or are not"
                " (batch, dim)"
            )
        dtype = torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)
        return self.distance(student.to(dtype), teacher.to(dtype)).mean()

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


class QueryDistillation(EmbeddingLoss):
    """`||e_q^t - e_q^s||^2 - weight * cos(e_q^t, e_q^s)`: direction and length (ScalingNote, Eq. 15)."""

    def __init__(self, weight: float = 1.0) -> None:
        """`weight` is the paper's lambda, 1 there; ValueError when it is below 0."""
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"weight {weight}: must be at least 0")
        self.weight = weight

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Distance of each pair, `(batch,)`; `-weight` where both are equal, the least there is."""
        squared = (student - teacher).square().sum(dim=1)
        return squared - self.weight * nn.functional.cosine_similarity(student, teacher, dim=1)


LOSSES: dict[str, type[EmbeddingLoss]] = {"squared_error": SquaredError, "l2": L2, "cosine": Cosine}
