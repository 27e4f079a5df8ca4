"""A teacher's embeddings of texts with their own documents, as the stage `score` stored them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 10_000  # vectors whose mean length counts as 1


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
    """One teacher's embeddings of texts with their own documents.

    `documents` `(texts, p)`; `values` `(embedded texts, p, dim)`; `positions` `(texts,)`: each text's row in `values`,
    -1 if it was not embedded.
    """

    documents: np.ndarray
    values: np.ndarray  # memory-mapped
    positions: np.ndarray

    @cached_property
    def unit(self) -> float:
        """Mean length over an even sample of texts, each with its nearest document."""
        return mean_length(self.values[:, 0])

    def of(self, rows: np.ndarray, documents: np.ndarray) -> Pairs:
        text_documents, at = self.documents[rows], self.positions[rows]
        positions = np.searchsorted(documents, text_documents).clip(max=max(0, len(documents) - 1))
        is_candidate = (
            documents[positions] == text_documents if len(documents) else np.zeros(text_documents.shape, dtype=bool)
        )
        is_embedded = np.broadcast_to(at[:, None] >= 0, text_documents.shape).copy()
        masks = (torch.from_numpy(array).to(device()) for array in (is_embedded, positions, is_candidate))
        return Pairs(to_device(self.values[at.clip(min=0)]) / self.unit, *masks)


def mean_length(vectors: np.ndarray) -> float:
    """Mean length of `(n, dim)` vectors over an even sample of rows; 1 where they are normalised."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE)).astype(np.int64))
    length = float(np.linalg.norm(np.asarray(vectors[rows], dtype=np.float64), axis=1).mean()) if len(rows) else 1.0
    return length if length > 0 and abs(length - 1) > 1e-3 else 1.0  # rounding aside, 1 where the teacher normalises


def device() -> str:
    """`cuda` where torch sees a GPU, else `cpu`, as `steps.encoders.towers` says it, which takes seconds to load."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def to_device(values: np.ndarray) -> Tensor:
    """Float32, where models run."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(device())
