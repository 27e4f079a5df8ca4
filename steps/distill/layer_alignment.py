"""The layers of a student beside those of its teacher: what a batch's layer distillation is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from steps.distill.candidates import Drawn
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

    def at(self, step: int, rows: np.ndarray, drawn: Drawn) -> Pairs:
        """The pairs of a step; the whole batch `rows` weighs the teacher's layers where they are drawn by weight."""
        return self.pairs.at(step, lambda layers: self._losses(rows, drawn, layers))

    def read(self, tokens: Tokens, rows: np.ndarray, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """The student's embeddings before their normalisation, and states of its paired layers, mapped."""
        embeddings, states = self.student.embed_layers(tokens, rows, pairs.student)
        return embeddings, self.pairs.mapped(states, pairs.student)

    def targets(
        self, made: Mapping[str, Tensor], piece: np.ndarray, rows: np.ndarray, drawn: Drawn, pairs: Pairs
    ) -> LayerTargets:
        """What the teacher's paired layers say of a piece of the batch `rows`."""
        found = self.teacher.layer_targets(made, piece, drawn.documents, pairs.teacher)
        if self.documents is not None:
            found = replace(found, documents=self.documents.of(drawn.documents, np.array(pairs.student)))
        if not self.pairs.loss.weighs_batches:
            return found
        return replace(found, losses=self._losses(rows, drawn, pairs.teacher))

    def _losses(self, rows: np.ndarray, drawn: Drawn, layers: Sequence[int]) -> Tensor:
        """Mean of each layer's own loss over the labelled texts of the batch, `(layers,)`; 0 where there is none."""
        labelled = drawn.label.any(axis=1)
        if not labelled.any():
            return torch.zeros(len(layers))
        found = self.teacher.scores(rows[labelled], drawn.documents, layers)
        arrays = (drawn.label, drawn.counts, drawn.own)
        label, counts, own = (torch.from_numpy(each[labelled]).to(found.known) for each in arrays)
        return own_losses(found.scores, Batch(label, counts, own), found.known).mean(dim=0)
