"""Losses that compare a student's embedding with its teacher's for the same text (or document).

| kind | needs | source |
|---|---|---|
| embedding | student and teacher `(n, dim)` | query-encoder alignment, Sec. 3.3; EmbedDistill, Eq. 5 |
| qkd | the same, before normalisation, and the teacher's lengths `(n,)` | ScalingNote, Eq. 15 |
| document_embedding | student's and teacher's documents `(m, dim)` | what EmbedDistill's Eq. 4 adds to Eq. 5 |
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets, exact
from steps.distill.providers import Provider, Setting
from steps.distill.score_tables import to_device

Distance = Literal["squared_error", "l2", "cosine"]


def distances(kind: Distance, student: Tensor, teacher: Tensor) -> Tensor:
    """Distance of each pair of `(n, dim)` vectors, `(n,)`; ValueError when the shapes differ.

    squared_error: `||t - s||^2`, summed over dimensions. l2: `||t - s||`, with gradient 0 where both are equal. cosine:
    `1 - cos(t, s)`.
    """
    if student.shape != teacher.shape or student.ndim != 2:
        raise ValueError(
            f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ in shape, or are not"
            " (batch, dim)"
        )
    student, teacher = exact(student, teacher)
    match kind:
        case "squared_error":
            return (student - teacher).square().sum(dim=1)
        case "l2":
            return torch.linalg.vector_norm(student - teacher, dim=1)
        case "cosine":
            return 1 - nn.functional.cosine_similarity(student, teacher, dim=1)
        case _:
            assert_never(kind)


class Embedding(Loss):
    """Distance between the student's and the teacher's embedding of a text."""

    kind: Literal["embedding"]
    distance: Distance = "squared_error"
    """To the teacher's vector of the text. squared_error is summed over dimensions; query-encoder alignment takes their
    mean.
    """

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        return distances(self.distance, outputs.queries, targets.queries)


class Lengths(Provider):
    """Lengths of the teacher's vectors of the texts before its normalisation, `(texts,)`; `unit` is their mean."""

    def __init__(self, lengths: np.ndarray, unit: float) -> None:
        self.lengths, self.unit = lengths, unit

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"lengths": self.lengths}

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Tensor:
        return to_device(self.lengths[rows]) / self.unit


class QueryDistillation(Loss):
    """`||t - s||^2 - cos(t, s)`: length and direction (ScalingNote, Eq. 15, with its lambda of 1).

    Both sides are taken before their normalisation. With `magnitude: false` after it, where the squared distance is
    `2 - 2 cos` and lengths say nothing.
    """

    kind: Literal["qkd"]
    magnitude: bool = True
    """Whether the distance is taken before normalisation."""

    def provider(self, setting: Setting) -> Provider | None:
        return Lengths(setting.sources.lengths, setting.units.queries) if self.magnitude else None

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        """Value of each text, `(n,)`; -1 where both sides are equal, the least there is."""
        student, teacher = outputs.queries, targets.queries
        if self.magnitude:
            student = outputs.raw
            teacher = functional.normalize(teacher, dim=1) * targets.provided[self.name][:, None]
        cosine = 1 - distances("cosine", student, teacher)
        return distances("squared_error", student, teacher) - cosine


class DocumentEmbedding(Loss):
    """Distance between the student's own embeddings of the candidates and the teacher's, mean over the candidates.

    With `embedding` it is EmbedDistill's Eq. 4; no table of bench/expected.yaml measures it. The paper also matches a
    pool of documents: with `labels: source` and a document_share those of the corpus become candidates.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.OWN_DOCUMENTS})

    kind: Literal["document_embedding"]
    distance: Distance = "l2"
    """To the teacher's vector of the document."""

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        if not len(targets.documents):
            return outputs.queries.sum(dim=1) * 0
        if outputs.documents is None:
            raise ValueError("document_embedding needs a student that reads documents")
        mean = distances(self.distance, outputs.documents, targets.documents.detach()).mean()
        return mean.expand(len(outputs.queries))
