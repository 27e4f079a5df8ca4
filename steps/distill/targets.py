"""What the teachers say of a batch: read from what earlier stages stored, or computed by a teacher that runs along."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from steps.distill.losses.base import Scores, Targets, Units, similarities
from steps.distill.pair_tables import mean_length, to_device
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast, device
from steps.retrieval.target_entropy import Sample, suggested_temperature

TELLING = 0.75  # of the entropy of equal shares; a student also ranks the documents of the batch's other texts
TELLING_DOCUMENTS = 8  # those nearest to a text


def units_of(vectors: np.ndarray, documents: np.ndarray) -> Units:
    """Mean lengths of the teacher's vectors of texts and of documents, `(n, dim)` each, over an even sample of rows."""
    return Units(mean_length(vectors), mean_length(documents))


def telling_temperature(
    vectors: np.ndarray, documents: np.ndarray, nearest: np.ndarray, rows: np.ndarray, units: Units, *, cosine: bool
) -> float:
    """The temperature at which the teacher's distributions over a text's nearest documents have, in the mean, TELLING
    of the entropy of equal shares.

    Vectors `(texts, dim)` and `(documents, dim)`, rows of the documents `nearest` to each text `(texts, k)`; of the
    texts `rows` an even sample. Where no temperature tells documents apart, it is that of the losses' default.
    """
    sample = Sample(len(rows), 2_000)
    sample.add(rows)
    queries = vectors[sample.all()].astype(np.float64)
    candidates = documents[nearest[sample.all()]].astype(np.float64)
    scores = np.einsum("td,tkd->tk", queries, candidates)
    if cosine:
        scores /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(candidates, axis=2)
    else:
        scores /= units.queries * units.documents
    return suggested_temperature(scores, TELLING) or 0.05


@dataclass(frozen=True)
class ScoreTable:
    """One teacher's scores of each text's own documents, or its layers' scores.

    `documents` `(texts, k)`, -1 for those of a text that it did not score; `positions` `(texts, k)`: their rows in
    `values`, `(pairs,)` or `(pairs, layers)`.
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
        text, column, position = match_documents(self.documents[rows], documents)
        values[text, position] = self.values[self.positions[rows[text], column]]
        is_scored[text, position] = True
        return to_device(np.moveaxis(values, 1, -1)), torch.from_numpy(is_scored).to(device())

    def sampled(self, count: int) -> np.ndarray:
        """Scores of a sample of the texts all of whose `count` nearest documents have some, `(n, count, ...)`."""
        positions = self.positions[(self.documents[:, :count] >= 0).all(axis=1), :count]
        sample = Sample(len(positions))
        sample.add(positions)
        return np.asarray(self.values[sample.all()], dtype=np.float32)


def match_documents(text_documents: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where texts' own documents `(n, k)` are among sorted `documents` `(m,)`: text, column, position, each `(p,)`."""
    positions = np.searchsorted(documents, text_documents).clip(max=max(0, len(documents) - 1))
    is_match = documents[positions] == text_documents if len(documents) else np.zeros_like(positions, dtype=bool)
    text, column = np.nonzero(is_match)
    return text, column, positions[text, column]


class Teachers(ABC):
    """Where targets come from."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """All that they follow from, besides weights and the stored vectors of the texts."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Teachers that train along with the student."""
        return ()

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """What a running teacher computes for a piece of a batch, by name; with gradient where it trains.

        `layers`: those of its layers, numbered from 0, that are paired with the student's.
        """
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
    lengths: np.ndarray | None = None  # (texts,)
    scores: Mapping[str, ScoreTable] = field(default_factory=dict)

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Without the vectors of the texts, which every training hashes."""
        arrays = {"documents": self.documents}
        if self.lengths is not None:
            arrays["lengths"] = self.lengths
        for name, table in self.scores.items():
            arrays |= {f"scores.{name}.{part}": array for part, array in vars(table).items()}
        return arrays

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        queries, candidates = to_device(self.vectors[rows]), to_device(self.documents[documents])
        return self.with_scores(queries, candidates, rows, documents)

    def with_scores(self, queries: Tensor, candidates: Tensor, rows: np.ndarray, documents: np.ndarray) -> Targets:
        """Targets of these vectors, with the stored scores and lengths of the same texts."""
        values = similarities(queries, candidates, cosine=self.cosine)
        scores = {"": Scores(values, torch.ones_like(values, dtype=torch.bool))}
        for name, table in self.scores.items():
            scores[name] = Scores(*table.of(rows, documents))
        lengths = None if self.lengths is None else to_device(self.lengths[rows])
        return Targets(queries, candidates, self.cosine, lengths, scores)


@dataclass(frozen=True)
class OnlineTeacher(Teachers):
    """The index teacher itself, frozen, reads each text again; documents, scores and lengths are the stored ones."""

    tower: SentenceTransformer
    texts: Sequence[str]
    stored: StoredTeachers
    precision: Precision = "fp32"

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.stored.arrays

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        with torch.inference_mode(), autocast(self.precision):
            embeddings = self.tower.encode_query(
                [self.texts[row] for row in rows], show_progress_bar=False, convert_to_tensor=True
            )
        return {"teacher": embeddings.float().clone()}

    def targets(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        candidates = to_device(self.stored.documents[documents])
        return self.stored.with_scores(tensors["teacher"], candidates, rows, documents)
