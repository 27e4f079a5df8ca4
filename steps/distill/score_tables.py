"""What the stage `score` stored of a teacher: its scores of texts with their own documents, or embeddings of pairs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from steps.encoders.precision import device

_SAMPLE = 10_000  # vectors whose mean length counts as 1


@dataclass(frozen=True)
class ScoreTable:
    """One teacher's scores of each text's own `documents` `(texts, k)`, -1 for none, or its layers' scores.

    `positions` `(texts, k)`: their rows in `values`, `(pairs,)` or `(pairs, layers)`.
    """

    documents: np.ndarray
    positions: np.ndarray
    values: np.ndarray  # of layers memory-mapped

    @property
    def scored(self) -> np.ndarray:
        """Which texts have scores, boolean `(texts,)`."""
        return np.asarray((self.documents >= 0).any(axis=1))

    def of(self, rows: np.ndarray, documents: np.ndarray) -> tuple[Tensor, Tensor]:
        """Scores `(n, m)`, or `(n, layers, m)`, of sorted `documents` `(m,)`, 0 for none; and where there are some."""
        values = np.zeros((len(rows), len(documents), *self.values.shape[1:]), dtype=np.float32)
        is_scored = np.zeros(values.shape[:2], dtype=bool)
        positions, is_match = match_documents(self.documents[rows], documents)
        text, column = np.nonzero(is_match)
        position = positions[text, column]
        values[text, position] = self.values[self.positions[rows[text], column]]
        is_scored[text, position] = True
        return to_device(np.moveaxis(values, 1, -1)), torch.from_numpy(is_scored).to(device())

    def sampled(self, count: int) -> np.ndarray:
        """Scores of a sample of the texts all of whose `count` nearest documents have some, `(n, count, ...)`."""
        from steps.retrieval.target_entropy import Sample  # SciPy: params are read without it

        positions = self.positions[(self.documents[:, :count] >= 0).all(axis=1), :count]
        sample = Sample(len(positions))
        sample.add(positions)
        return np.asarray(self.values[sample.all()], dtype=np.float32)


@dataclass(frozen=True)
class Pairs:
    """A teacher's embeddings of each text with p documents, `(n, p, dim)`, in units of their mean length.

    Booleans `(n, p)`: `is_embedded`, whether the teacher embedded the pair, and `is_candidate`, whether its document is
    among the candidates; `positions`: where it is among them.
    """

    values: Tensor
    is_embedded: Tensor
    positions: Tensor
    is_candidate: Tensor


@dataclass(frozen=True)
class PairTable:
    """One teacher's embeddings of texts with their own documents `(texts, p)`.

    `positions` `(texts,)`: each text's row in `values` `(embedded texts, p, dim)`, -1 if it was not embedded.
    """

    documents: np.ndarray
    values: np.ndarray  # memory-mapped
    positions: np.ndarray

    @cached_property
    def unit(self) -> float:
        """Mean length over an even sample of texts, each with its nearest document."""
        return mean_length(self.values[:, 0])

    def of(self, rows: np.ndarray, documents: np.ndarray) -> Pairs:
        """Pairs of these texts, and where their documents are among sorted `documents` `(m,)`."""
        text_documents, at = self.documents[rows], self.positions[rows]
        is_embedded = np.broadcast_to(at[:, None] >= 0, text_documents.shape).copy()
        masks = (is_embedded, *match_documents(text_documents, documents))
        tensors = (torch.from_numpy(mask).to(device()) for mask in masks)
        return Pairs(to_device(self.values[at.clip(min=0)]) / self.unit, *tensors)


def match_documents(text_documents: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where texts' own documents `(n, k)` are among sorted `documents` `(m,)`, and whether they are, each `(n, k)`."""
    positions = np.searchsorted(documents, text_documents).clip(max=max(0, len(documents) - 1))
    is_match = documents[positions] == text_documents if len(documents) else np.zeros(positions.shape, dtype=bool)
    return positions, is_match


def mean_length(vectors: np.ndarray) -> float:
    """Mean length of `(n, dim)` vectors over an even sample of rows; 1 where they are normalised."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE)).astype(np.int64))
    length = float(np.linalg.norm(np.asarray(vectors[rows], dtype=np.float64), axis=1).mean()) if len(rows) else 1.0
    return length if length > 0 and abs(length - 1) > 1e-3 else 1.0  # rounding aside, 1 where the teacher normalises


def to_device(values: np.ndarray) -> Tensor:
    """Float32, where models run."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(device())
