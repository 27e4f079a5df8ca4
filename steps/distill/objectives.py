"""What a step minimises: a weighted sum of terms over the texts of a batch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steps.distill.candidates import Batch, Candidates
from steps.distill.losses.embedding import L2, EmbeddingLoss
from steps.distill.losses.label import BinaryCrossEntropy, SoftmaxCrossEntropy
from steps.distill.losses.score import BinaryScores, LogitMatching, SoftmaxScores
from steps.distill.params import Ranking
from steps.distill.students import Student
from steps.distill.tokens import Tokens


class Objective(Protocol):
    """A batch's loss is the sum of its terms, each a mean over the batch, weighted."""

    names: Sequence[str]
    arrays: dict[str, np.ndarray]  # all that it reads besides the texts and the teacher's vectors of them

    def embed(self, student: Student, tokens: Tokens, piece: np.ndarray, rows: np.ndarray, step: int) -> Tensor:
        """What the terms of `piece`, a part of the batch `rows`, are computed from, `(n, dim)`, with gradient."""

    def terms(self, embedded: Tensor, piece: np.ndarray, rows: np.ndarray, step: int) -> dict[str, Tensor]:
        """The share of `piece` in each term of the batch, by name: scalars."""


class Embeddings:
    """Each text's embedding against its teacher's; of Matryoshka students also both cut to each of some widths."""

    def __init__(self, name: str, loss: EmbeddingLoss, vectors: np.ndarray, widths: list[int]) -> None:
        """`vectors` `(texts, dim)` are the teacher's, memory-mapped; the term is the mean over widths and `dim`."""
        self.names: Sequence[str] = [name]
        self.loss, self.vectors, self.widths = loss, vectors, widths
        self.arrays: dict[str, np.ndarray] = {}

    def embed(self, student: Student, tokens: Tokens, piece: np.ndarray, rows: np.ndarray, step: int) -> Tensor:
        """Embeddings of the piece's texts."""
        return student.embed(tokens, piece)

    def terms(self, embedded: Tensor, piece: np.ndarray, rows: np.ndarray, step: int) -> dict[str, Tensor]:
        """The mean distance."""
        target = _targets(self.vectors, piece, embedded)
        losses = [self.loss(embedded, target)]
        norms = target.norm(dim=1, keepdim=True)  # a cut weighs as much as the whole, whatever the teacher's scale
        losses += [self.loss(norms * _cut(embedded, width), norms * _cut(target, width)) for width in self.widths]
        return {self.names[0]: torch.stack(losses).mean() * len(piece) / len(rows)}


class Rankings:
    """EmbedDistill: candidates' scores against labels and the teacher's scores, and embeddings against its embeddings.

    Scores are similarities to the teacher's frozen document embeddings, or, given `document_tokens`, to the
    student's own embeddings of the documents (a symmetric student); in softmax terms over the temperature. Label
    terms are means over the texts that have a label, the others over all texts.
    """

    def __init__(
        self,
        ranking: Ranking,
        vectors: np.ndarray,
        documents: np.ndarray,
        candidates: Candidates,
        document_tokens: Tokens | None = None,
        *,
        cosine: bool,
    ) -> None:
        """Teacher's `vectors` `(texts, dim)` and `documents` `(n, dim)`, memory-mapped, compared by `cosine` or not."""
        self.weights = {name: weight for name, weight in ranking.terms.items() if weight > 0}
        self.names: Sequence[str] = list(self.weights)
        self.temperature, self.cosine = ranking.temperature, cosine
        self.vectors, self.documents = vectors, documents
        self.candidates, self.document_tokens = candidates, document_tokens
        self.last: tuple[int, np.ndarray, Batch] | None = None
        self.score_losses = {
            "score_softmax": SoftmaxScores(ranking.temperature),
            "score_binary": BinaryScores(),
            "score_squared": LogitMatching(),
        }
        owners = [[row, document] for row, own in sorted(candidates.positives.items()) for document in own.tolist()]
        self.arrays = {"positives": np.array(owners), "nearest": candidates.nearest, "documents": documents}
        if document_tokens is not None:
            self.arrays |= {"document_ids": document_tokens.ids, "document_offsets": document_tokens.offsets}

    def embed(self, student: Student, tokens: Tokens, piece: np.ndarray, rows: np.ndarray, step: int) -> Tensor:
        """Embeddings of the piece's texts, and below them a symmetric student's of the batch's documents."""
        queries = student.embed(tokens, piece)
        if self.document_tokens is None or not len(documents := self._candidates(rows, step).documents):
            return queries
        return torch.cat([queries, student.embed(self.document_tokens, documents)])

    def _candidates(self, rows: np.ndarray, step: int) -> Batch:
        """Those of the batch, made once for all its pieces."""
        if self.last is None or self.last[0] != step or not np.array_equal(self.last[1], rows):
            self.last = step, rows, self.candidates.of(rows, step)
        return self.last[2]

    def terms(self, embedded: Tensor, piece: np.ndarray, rows: np.ndarray, step: int) -> dict[str, Tensor]:
        """The terms that have a weight."""
        if self.names == ["query_matching"]:  # needs no documents
            queries, target = embedded[: len(piece)], _targets(self.vectors, piece, embedded)
            return {"query_matching": self.weights["query_matching"] * L2()(queries, target) * len(piece) / len(rows)}
        batch = self._candidates(rows, step)
        queries, target = embedded[: len(piece)], _targets(self.vectors, piece, embedded)
        frozen = _targets(self.documents, batch.documents, embedded)
        documents = frozen if self.document_tokens is None else embedded[len(piece) :]
        scores, goal = self._scores(queries, documents), self._scores(target, frozen)
        own = np.searchsorted(rows, piece)
        label, counts = (torch.from_numpy(each[own]).to(embedded.device) for each in (batch.label, batch.counts))
        share = len(piece) / len(rows)
        labelled, all_labelled = label.any(dim=1), max(1, int(batch.label.sum()))
        label_share = int(labelled.sum()) / all_labelled
        found: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            match name:
                case "label_softmax":
                    tempered = scores / self.temperature
                    value = label_share * SoftmaxCrossEntropy()(tempered, label.to(scores), counts)
                case "label_binary":
                    value = label_share * BinaryCrossEntropy()(scores, label.to(scores), counts & labelled[:, None])
                case "query_matching":
                    value = share * L2()(queries, target)
                case "document_matching":
                    value = share * (L2()(documents, frozen) if len(frozen) else documents.sum())
                case _:
                    value = share * self.score_losses[name](scores, goal)
            found[name] = weight * value
        return found

    def _scores(self, queries: Tensor, documents: Tensor) -> Tensor:
        """`(n, m)`."""
        if self.cosine:
            queries, documents = functional.normalize(queries, dim=1), functional.normalize(documents, dim=1)
        return queries @ documents.T


def _targets(vectors: np.ndarray, rows: np.ndarray, like: Tensor) -> Tensor:
    """The vectors of these rows, float32, where `like` is."""
    return torch.from_numpy(np.asarray(vectors[rows], dtype=np.float32)).to(like.device)


def _cut(vectors: Tensor, width: int) -> Tensor:
    """The first `width` dimensions, renormalised: Matryoshka embeddings (Kusupati et al. 2022)."""
    return functional.normalize(vectors[:, :width], dim=1)
