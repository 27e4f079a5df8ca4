"""Losses that compare a student with a cross encoder's embeddings of a text read with its nearest documents.

n texts, p documents of each, `(n, p, dim')` embeddings in units of their mean length. What the student has is mapped
to the teacher's dim' by a linear layer that trains along and is no part of the student.

| kind | teacher | source |
|---|---|---|
| pooled_embedding | with dual pooling | EmbedDistill, Sec. 4.2, Eq. 5 |
| joint_embedding | without, pooling: cls | Sec. 4.2, the control that loses |
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Scoring, Targets, exact
from steps.distill.losses.embedding import Distance, distances
from steps.distill.providers import Provider, Setting
from steps.distill.score_tables import Pairs, PairTable
from steps.encoders.precision import device


class PairEmbeddings(Provider):
    """Stored embeddings of texts with their nearest documents."""

    def __init__(self, table: PairTable, head: nn.Module) -> None:
        self.table, self.has = table, table.positions >= 0
        self.head: nn.Module = head.to(device())

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        table = self.table
        return {"documents": table.documents, "values": table.values, "positions": table.positions}

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> tuple[Pairs, nn.Module]:
        return self.table.of(rows, documents), self.head


class PairLoss(Loss):
    """Base of the losses here: mean distance over a text's documents."""

    takes_teacher: ClassVar[bool] = True
    undivided: ClassVar[str] = "compares a cross encoder's embeddings"
    embeds: ClassVar[Literal["pooled", "joint"]]  # what its teacher has to embed

    teacher: str = Field(min_length=1)
    """The cross encoder, one of score.teachers."""
    distance: Distance = "l2"
    """To its embedding."""

    @abstractmethod
    def head(self, dim: int, target_dim: int) -> nn.Module:
        """What maps the student's side of `dim` dimensions to the teacher's `target_dim`."""

    def provider(self, setting: Setting) -> Provider:
        table = setting.sources.pairs(self.teacher, self.embeds)
        return PairEmbeddings(table, self.head(setting.sources.vectors.shape[1], table.values.shape[2]))

    def complain_of_scoring(self, scoring: Scoring) -> str:
        if not scoring.pairs:
            return "learns embeddings of pairs, but score.pairs is 0; set it to 1 or more"
        if self.embeds == scoring.embeds:
            return ""
        wanted = "pooling: cls" if self.embeds == "joint" else "pooling: special_tokens or segments"
        return f"learns the embeddings of a cross encoder with {wanted}; name such a teacher"

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        pairs, head = targets.provided[self.name]
        projected = self.project(head, outputs, targets, pairs).expand(pairs.values.shape)
        losses = distances(self.distance, projected.flatten(end_dim=1), pairs.values.flatten(end_dim=1))
        counts = self.counts(pairs).to(losses.dtype)
        return (losses.view(counts.shape) * counts).sum(dim=1) / counts.sum(dim=1).clamp(min=1)

    @abstractmethod
    def project(self, head: nn.Module, outputs: Outputs, targets: Targets, pairs: Pairs) -> Tensor:
        """The student's side in the teacher's dimension: `(n, p, dim')`, or `(n, 1, dim')` for all documents."""

    def counts(self, pairs: Pairs) -> Tensor:
        """Which pairs count, boolean `(n, p)`: all that the teacher has embedded."""
        return pairs.is_embedded


class PooledEmbedding(PairLoss):
    """`||e_q^t(q, d) - proj(e_q^s)||`: the text's proxy embedding, given a document, and the student's (Eq. 5).

    The document's proxy embedding (Eq. 4) is not learned.
    """

    embeds: ClassVar[Literal["pooled", "joint"]] = "pooled"

    kind: Literal["pooled_embedding"]

    def head(self, dim: int, target_dim: int) -> nn.Module:
        return nn.Linear(dim, target_dim)

    def project(self, head: nn.Module, outputs: Outputs, targets: Targets, pairs: Pairs) -> Tensor:
        projected: Tensor = head(outputs.queries)
        return projected[:, None]


class JointEmbedding(PairLoss):
    """`||e_(q,d)^t - W [e_q^s; e_d^s; e_q^s * e_d^s]||`: the embedding of a pair, and a map of the student's two.

    The paper says no more of its joint transformation of both. Documents that are no candidates do not count.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES})
    embeds: ClassVar[Literal["pooled", "joint"]] = "joint"

    kind: Literal["joint_embedding"]

    def head(self, dim: int, target_dim: int) -> nn.Module:
        return nn.Linear(3 * dim, target_dim)

    def project(self, head: nn.Module, outputs: Outputs, targets: Targets, pairs: Pairs) -> Tensor:
        queries, candidates = exact(
            outputs.queries, targets.documents if outputs.documents is None else outputs.documents
        )
        documents = candidates[pairs.positions]
        queries = queries[:, None].expand(documents.shape)
        joined: Tensor = head(torch.cat([queries, documents, queries * documents], dim=2))
        return joined

    def counts(self, pairs: Pairs) -> Tensor:
        return pairs.is_embedded & pairs.is_candidate
