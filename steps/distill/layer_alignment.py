"""The layers of a student beside those of its teacher: what a batch's layer distillation is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from steps.distill.candidates import CandidateBatch
from steps.distill.layer_pairs import LayerPairs, Pairs
from steps.distill.layer_store import LayerTeacher, StateTable
from steps.distill.losses.base import Batch, LayerTargets
from steps.distill.losses.layer import own_losses
from steps.distill.tokens import Tokens


class LayeredStudent(Protocol):
    """A student whose layers can be seen."""

    def embed_layers(self, tokens: Tokens, rows: np.ndarray, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Embeddings before the final normalisation, and pooled states `(n, len(layers), width)`."""


@dataclass(frozen=True)
class LayerAlignment:
    """A student, a teacher whose layers score, and the pairs of their layers.

    `documents`: states of documents `(documents, student's layers, width)` for a student without its own, where the
    teacher has none: those of the index teacher's layers that stand as high as the student's.
    """

    student: LayeredStudent
    teacher: LayerTeacher
    pairs: LayerPairs
    documents: StateTable | None = None

    def at(self, step: int, rows: np.ndarray, candidates: CandidateBatch) -> Pairs:
        """The pairs of a step; the whole batch `rows` weighs the teacher's layers where they are drawn by weight."""
        return self.pairs.at(step, lambda layers: self._losses(rows, candidates, layers))

    def embed(self, tokens: Tokens, rows: np.ndarray, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """The student's embeddings before their normalisation, and states of its paired layers, mapped."""
        embeddings, states = self.student.embed_layers(tokens, rows, pairs.student)
        return embeddings, self.pairs.mapped(states, pairs.student)

    def targets(
        self,
        tensors: Mapping[str, Tensor],
        piece: np.ndarray,
        rows: np.ndarray,
        candidates: CandidateBatch,
        pairs: Pairs,
    ) -> LayerTargets:
        """What the teacher's paired layers say of a piece of the batch `rows`."""
        targets = self.teacher.layer_targets(tensors, piece, candidates.documents, pairs.teacher)
        if self.documents is not None:
            targets = replace(targets, documents=self.documents.of(candidates.documents, np.array(pairs.student)))
        if not self.pairs.loss.weighs_batches:
            return targets
        return replace(targets, losses=self._losses(rows, candidates, pairs.teacher))

    def _losses(self, rows: np.ndarray, candidates: CandidateBatch, layers: Sequence[int]) -> Tensor:
        """Mean of each layer's own loss over the labelled texts of the batch, `(layers,)`; 0 where there is none."""
        labelled = candidates.label.any(axis=1)
        if not labelled.any():
            return torch.zeros(len(layers))
        targets = self.teacher.scores(rows[labelled], candidates.documents, layers)
        arrays = (candidates.label, candidates.counts, candidates.is_own)
        label, counts, is_own = (torch.from_numpy(mask[labelled]).to(targets.is_scored) for mask in arrays)
        return own_losses(targets.scores, Batch(label, counts, is_own), targets.is_scored).mean(dim=0)
