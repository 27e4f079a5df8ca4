"""The contrastive loss of a batch of triplets (ScalingNote, Eq. 5-12), and which of its documents are no negatives."""

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from torch.nn import functional

from steps.core.texts import fold
from steps.teach.kinds.contrastive import LossParams
from steps.teach.training_triplets import TextTriplet

Positives = Mapping[str, Set[str]]
"""Ids of the documents known to be relevant to a query, by its folded text."""


class InBatch:
    """Which documents of a batch are relevant to which of its queries: the loss must not push these apart.

    Queries and documents have numbers; texts that are equal when folded share one.
    """

    def __init__(self, triplets: Sequence[TextTriplet], positives: Positives) -> None:
        queries: dict[str, int] = {}
        texts: dict[str, int] = {}
        documents: dict[str, int] = {}
        for triplet in triplets:
            for doc_id, text in ((triplet.positive_id, triplet.positive), (triplet.negative_id, triplet.negative)):
                if doc_id not in documents:
                    documents[doc_id] = texts.setdefault(fold(text), len(texts))
        self.numbers = [
            [
                queries.setdefault(fold(triplet.query), len(queries)),
                documents[triplet.positive_id],
                documents[triplet.negative_id],
            ]
            for triplet in triplets
        ]
        self.documents = len(texts)
        pairs = {query * self.documents + positive for query, positive, _ in self.numbers}
        for query, number in queries.items():
            pairs |= {
                number * self.documents + documents[positive_id]
                for positive_id in positives.get(query, ())
                if positive_id in documents
            }
        self.pairs = torch.from_numpy(np.array(sorted(pairs), dtype=np.int64))

    def relevant(self, numbers: Tensor) -> Tensor:
        """Whether a document is relevant to a query but is not its row's positive: bool `(batch, 2 * batch)`.

        `numbers` int64 `(batch, 3)` are those of queries, positives and negatives; columns: positives, then negatives.
        """
        self.pairs = self.pairs.to(numbers.device)
        pairs = numbers[:, :1] * self.documents + torch.cat([numbers[:, 1], numbers[:, 2]])
        positions = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        is_relevant = self.pairs[positions] == pairs
        is_relevant.diagonal().fill_(False)
        return is_relevant


class ContrastiveLoss(MultipleNegativesRankingLoss):
    """`sum_m (softmax_m + margin_weight * hard_m)` over the embeddings and their first m dimensions, m in `dims`.

    softmax: `-mean_i log softmax_j(s(q_i, d_j) / temperature)[i]` (InfoNCE, Eq. 5) over the positives and, where
    `hard_negatives` is softmax or both, mined negatives. With `both_directions` half of this, and half of the same
    of each positive over the batch's queries (Eq. 6-7).
    hard: `mean_i max(0, margin - s(q_i, d_i+) + s(q_i, d_i-))` (Eq. 9) where `hard_negatives` is margin or both.
    s is the tower's own similarity, at least in fp32 whatever the network computes in: bf16 keeps 8 bits of a logit.
    A document that is known to be relevant to a query is none of its negatives (`in_batch`): no other row's in the
    softmax, and of a mined one that is, the row's hinge is 0.
    First dimensions are normalised, as the index does it: s of them is the cosine.

    | texts | labels | embeddings |
    |---|---|---|
    | (query, positive, negative), or with `hard_negatives: none` (query, positive) | with `in_batch` its numbers, int64
    `(batch, 3)` | `(batch, dim)` each |
    """

    def __init__(
        self, tower: SentenceTransformer, temperature: float, params: LossParams, in_batch: InBatch | None = None
    ) -> None:
        def similarity(queries: Tensor, documents: Tensor) -> Tensor:
            with torch.autocast(queries.device.type, enabled=False):
                scores = tower.similarity(_exact(queries), _exact(documents))
            return scores if self.masked is None else scores.masked_fill(self.masked[:, : len(documents)], -torch.inf)

        def of_pairs(queries: Tensor, documents: Tensor) -> Tensor:
            with torch.autocast(queries.device.type, enabled=False):
                return tower.similarity_pairwise(_exact(queries), _exact(documents))

        super().__init__(
            tower,
            scale=1 / temperature,
            similarity_fct=similarity,
            directions=("query_to_doc", "doc_to_query") if params.both_directions else ("query_to_doc",),
            partition_mode="per_direction" if params.both_directions else "joint",
        )
        self.params, self.of_pairs, self.in_batch = params, of_pairs, in_batch
        self.masked: Tensor | None = None  # (batch, 2 * batch), of the batch at hand

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Sum over the whole embeddings and each of `dims`."""
        self.masked = self.in_batch.relevant(labels) if self.in_batch else None
        views = [embeddings, *([_first(vectors, dim) for vectors in embeddings] for dim in self.params.dims)]
        return torch.stack([self._loss_of(view, labels) for view in views]).sum()

    def _loss_of(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        in_softmax = embeddings if self.params.hard_negatives in {"softmax", "both"} else embeddings[:2]
        value = super().compute_loss_from_embeddings(in_softmax, labels)
        if self.params.hard_negatives in {"margin", "both"}:
            queries, positives, negatives = embeddings
            near, far = self.of_pairs(queries, positives), self.of_pairs(queries, negatives)
            hard = functional.relu(self.params.margin - near + far)
            if self.masked is not None:
                hard = hard.masked_fill(self.masked[:, len(positives) :].diagonal(), 0)
            value = value + self.params.margin_weight * hard.mean()
        return value


def _exact(vectors: Tensor) -> Tensor:
    """In fp32, or fp64 where they are."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def _first(vectors: Tensor, dim: int) -> Tensor:
    """The first `dim` dimensions of `(n, d)` vectors, of length 1."""
    return functional.normalize(_exact(vectors)[:, :dim], dim=1)
