"""What the teachers say of a batch: read from what earlier stages stored, or computed by a teacher that runs along."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from steps.distill.losses.base import Scores, Targets, Units, similarities
from steps.distill.score_tables import ScoreTable, mean_length, to_device
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast


def units_of(vectors: np.ndarray, documents: np.ndarray) -> Units:
    """Mean lengths of the teacher's vectors of texts and of documents, `(n, dim)` each, over an even sample of rows."""
    return Units(mean_length(vectors), mean_length(documents))


class Teachers(ABC):
    """Where targets come from."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """All that they follow from, besides weights and the stored vectors of the texts."""

    @property
    def code(self) -> Sequence[str]:
        """Modules of code, besides those of this package, by which they compute while they train."""
        return ()

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Teachers that train along with the student."""
        return ()

    def forward(self, rows: np.ndarray, documents: np.ndarray) -> dict[str, Tensor]:
        """What a running teacher computes for a piece of a batch, by name; with gradient where it trains."""
        return {}

    @abstractmethod
    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """What all teachers say of these texts and documents; `tensors` come from `forward`, or stand in for it."""


@dataclass(frozen=True)
class StoredTeachers(Teachers):
    """The index teacher's vectors as `embed` wrote them, and other teachers' scores as `score` did."""

    vectors: np.ndarray  # (texts, dim), memory-mapped
    documents: np.ndarray  # (documents, dim), memory-mapped
    cosine: bool
    scores: Mapping[str, ScoreTable] = field(default_factory=dict)

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Without the vectors of the texts, which every training hashes."""
        arrays = {"documents": self.documents}
        for name, table in self.scores.items():
            arrays |= {f"scores.{name}.{part}": array for part, array in vars(table).items()}
        return arrays

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        queries, candidates = to_device(self.vectors[rows]), to_device(self.documents[documents])
        return self.with_scores(queries, candidates, rows, documents)

    def with_scores(self, queries: Tensor, candidates: Tensor, rows: np.ndarray, documents: np.ndarray) -> Targets:
        """Targets of these vectors, with the stored scores of the same texts."""
        values = similarities(queries, candidates, cosine=self.cosine)
        scores = {"": Scores(values, torch.ones_like(values, dtype=torch.bool))}
        for name, table in self.scores.items():
            scores[name] = Scores(*table.of(rows, documents))
        return Targets(queries, candidates, self.cosine, scores)


@dataclass(frozen=True)
class OnlineTeacher(Teachers):
    """The index teacher itself, frozen, reads each text again; documents and scores are the stored ones."""

    tower: SentenceTransformer
    texts: Sequence[str]
    stored: StoredTeachers
    precision: Precision = "fp32"

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.stored.arrays

    def forward(self, rows: np.ndarray, documents: np.ndarray) -> dict[str, Tensor]:
        with torch.inference_mode(), autocast(self.precision):
            embeddings = self.tower.encode_query(
                [self.texts[row] for row in rows], show_progress_bar=False, convert_to_tensor=True
            )
        return {"teacher": embeddings.float().clone()}

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        candidates = to_device(self.stored.documents[documents])
        return self.stored.with_scores(tensors["teacher"], candidates, rows, documents)
