"""Losses that compare a student's embedding with its teacher's for the same text.

Every loss takes student and teacher `(batch, dim)` and returns a scalar, the mean over the batch. It is computed in
float32, in float64 where one side is.

| loss | source |
|---|---|
| SquaredError | query-encoder alignment, Sec. 3.3 |
| L2 | EmbedDistill, Eq. 5: queries |
| BothTowers | EmbedDistill, Eq. 4: queries and documents; takes four embeddings |
| Cosine | |
| QueryDistillation | ScalingNote, Eq. 15 |
| IndexWeightedSquaredError | ours: errors weighed by what they do to the scores of the index's documents |
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

_VALUES_AT_ONCE = 2**22  # of the documents' matrix: 32 MB as float64


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


class BothTowers(nn.Module):
    """`||e_q^t - e_q^s|| + ||e_d^t - e_d^s||`: embedding matching of both towers (EmbedDistill, Eq. 4), not squared."""

    def __init__(self) -> None:
        super().__init__()
        self.l2 = L2()

    def forward(
        self, student_queries: Tensor, teacher_queries: Tensor, student_documents: Tensor, teacher_documents: Tensor
    ) -> Tensor:
        """Mean over the queries `(batch, dim)` plus mean over the documents `(documents, dim)`.

        Of pairs, one document a query, that is Eq. 4. ValueError when a student's shape differs from its teacher's.
        """
        return self.l2(student_queries, teacher_queries) + self.l2(student_documents, teacher_documents)


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


class IndexWeightedSquaredError(EmbeddingLoss):
    """`delta^T ((1 - share) I + share M) delta` with `delta = e_q^s - e_q^t`, M the documents' `second_moment` (ours).

    An error in a direction in which documents do not differ cannot change a ranking. `delta^T M delta` is the variance
    over the documents of the error in their scores, up to M's scale; with `share` 0 the loss is SquaredError.
    """

    weights: Tensor

    def __init__(self, second_moment: Tensor, share: float = 1.0) -> None:
        """`second_moment` is M `(dim, dim)`, trace dim; `share` is 0 to 1; ValueError for anything else.

        The weights are a buffer: the module must be moved to the embeddings' device.
        """
        super().__init__()
        if second_moment.ndim != 2 or second_moment.shape[0] != second_moment.shape[1]:
            raise ValueError(f"second_moment {tuple(second_moment.shape)}: must be (dim, dim)")
        dim, trace = len(second_moment), float(second_moment.trace())
        if not abs(trace - dim) <= 1e-3 * dim:
            raise ValueError(f"second_moment has trace {trace:g}: must have trace {dim}, its width")
        if not 0 <= share <= 1:
            raise ValueError(f"share {share}: must be 0 to 1")
        self.register_buffer("weights", (1 - share) * torch.eye(dim).to(second_moment) + share * second_moment)

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Weighted squared distance of each pair, `(batch,)`; ValueError when M has another width."""
        if student.shape[1] != len(self.weights):
            raise ValueError(f"embeddings have width {student.shape[1]}, second_moment {len(self.weights)}")
        error = student - teacher
        with torch.autocast(error.device.type, enabled=False):  # M rounded to bf16 can have negative eigenvalues
            return ((error @ self.weights.to(error.dtype)) * error).sum(dim=1)


def second_moment(documents: np.ndarray, sample: int = 2**18) -> Tensor:
    """Covariance of the documents' embeddings `(n, dim)`, scaled to trace dim: float32 `(dim, dim)`.

    Centred, because an error that moves all scores alike changes no ranking. Reads, part by part, at most `sample` rows
    at even distances. ValueError for another shape, fewer than two rows, and rows that do not differ or are not finite.
    """
    if documents.ndim != 2 or min(len(documents), sample) < 2:
        raise ValueError(f"documents {documents.shape}, sample {sample}: needs (n, dim) and at least two rows")
    rows, dim = documents[:: -(-len(documents) // sample)], documents.shape[1]
    origin, total, products = rows[0].astype(np.float64), np.zeros(dim), np.zeros((dim, dim))
    at_once = max(1, _VALUES_AT_ONCE // dim)
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once].astype(np.float64) - origin
        total += part.sum(axis=0)
        products += part.T @ part
    mean = total / len(rows)
    covariance = products / len(rows) - np.outer(mean, mean)
    variance = float(np.trace(covariance))
    if not 0 < variance < np.inf:
        raise ValueError(f"the {len(rows)} documents have variance {variance:g}: they do not differ or are not finite")
    return torch.from_numpy((covariance * (dim / variance)).astype(np.float32))


LOSSES: dict[str, type[EmbeddingLoss]] = {"squared_error": SquaredError, "l2": L2, "cosine": Cosine}
