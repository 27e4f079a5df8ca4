"""Teachers whose layers score documents (LEAD, Sec. 3.3)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from steps.distill.score_tables import ScoreTable, to_device


@dataclass(frozen=True)
class LayerTargets:
    """What k layers of a teacher say of the candidates.

    `scores` `(n, k, m)`, with gradient where the teacher trains, and which candidates it scored, `is_scored` `(n, m)`.
    `documents` `(m, k, width)`: its states of the candidates, for a student without documents of its own.
    """

    scores: Tensor
    is_scored: Tensor
    documents: Tensor | None = None


class LayerTeacher(ABC):
    """A teacher whose layers score documents: by their states, by scores that are stored, or as it trains along."""

    @property
    def layer_arrays(self) -> Mapping[str, np.ndarray]:
        """What the scores follow from, besides weights and the arrays of `Teachers`."""
        return {}

    def pair(self, layers: Sequence[int]) -> None:  # noqa: B027  # what is stored is there
        """Let a step compute the scores of these layers, numbered from 0."""

    def scores(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> LayerTargets:
        """What these layers, numbered from 0, give the documents for the texts, without gradient."""
        return self.layer_targets({}, rows, documents, layers)

    @abstractmethod
    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        """The same with all that a student needs; `tensors`: what a running teacher computed, or puts in its place."""


@dataclass(frozen=True)
class StateTable:
    """States of some rows' texts: `states` `(len(rows), layers, width)`, memory-mapped; `rows` sorted.

    `columns`: where the layers that are asked for stand among those; None = as they are.
    """

    rows: np.ndarray
    states: np.ndarray
    columns: Sequence[int] | None = None

    def of(self, rows: np.ndarray, positions: np.ndarray) -> Tensor:
        """States `(len(rows), len(positions), width)` of the layers at these positions."""
        at = np.searchsorted(self.rows, rows)
        positions = positions if self.columns is None else np.array(self.columns)[positions]
        return to_device(self.states[at[:, None], positions[None, :]])


@dataclass(frozen=True)
class StoredLayers(LayerTeacher):
    """Scores of a frozen dual encoder's layers: inner products of stored states."""

    layers: Sequence[int]  # those that are stored, numbered from 0
    texts: StateTable
    documents: StateTable
    key: bytes  # of the tower and of how it read them

    @property
    def layer_arrays(self) -> Mapping[str, np.ndarray]:
        key = np.frombuffer(self.key, dtype=np.uint8)
        return {"key": key, "texts": self.texts.rows, "documents": self.documents.rows}

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        positions = np.searchsorted(np.array(self.layers), np.array(layers))
        states = self.documents.of(documents, positions)
        return compared(self.texts.of(rows, positions), states, states)


@dataclass(frozen=True)
class ScoredLayers(LayerTeacher):
    """Scores of another teacher's layers, of any kind: those that the stage `score` stored (LEAD, Eq. 2 to 5)."""

    table: ScoreTable

    @property
    def depth(self) -> int:
        """How many layers scored."""
        return int(self.table.values.shape[1])

    @property
    def layer_arrays(self) -> Mapping[str, np.ndarray]:
        return dict(vars(self.table))

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        values, is_scored = self.table.of(rows, documents)
        return LayerTargets(values[:, list(layers)], is_scored)


def compared(texts: Tensor, documents: Tensor, shared: Tensor | None = None) -> LayerTargets:
    """`products` of the teacher's states (LEAD, Eq. 1, 4); `shared`: those of documents for a student without any."""
    scores = products(texts, documents)
    return LayerTargets(scores, torch.ones_like(scores[:, 0], dtype=torch.bool), shared)


def products(texts: Tensor, documents: Tensor) -> Tensor:
    """Inner products of `(n, k, width)` and `(m, k, width)` states, layer by layer, `(n, k, m)`."""
    return torch.einsum("nkd,mkd->nkm", texts, documents)
