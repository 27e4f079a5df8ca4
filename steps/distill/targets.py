"""What the teachers say of a batch: read from what earlier stages stored, or computed by a teacher that runs along."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from steps.distill.losses.base import Pairs, Scores, Targets, Units, similarities
from steps.encoders.precision import Precision
from steps.encoders.towers import autocast, device

_SAMPLE = 10_000  # vectors whose mean length counts as 1


def units_of(vectors: np.ndarray, documents: np.ndarray) -> Units:
    """Mean lengths of the teacher's vectors of texts and of documents, `(n, dim)` each, over an even sample of rows."""
    return Units(_mean_length(vectors), _mean_length(documents))


def _mean_length(vectors: np.ndarray) -> float:
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE)).astype(np.int64))
    length = float(np.linalg.norm(np.asarray(vectors[rows], dtype=np.float64), axis=1).mean()) if len(rows) else 1.0
    return length if length > 0 and abs(length - 1) > 1e-3 else 1.0  # rounding aside, 1 where the teacher normalises


@dataclass(frozen=True)
class ScoreTable:
    """One teacher's scores of each text's own documents: `documents` and `scores` `(texts, k)`.

    Documents of a text that it did not score are -1.
    """

    documents: np.ndarray
    scores: np.ndarray

    @property
    def scored(self) -> np.ndarray:
        """Which texts have scores, boolean `(texts,)`."""
        return np.asarray((self.documents >= 0).any(axis=1))

    def of(self, rows: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores `(n, m)` of sorted `documents` `(m,)`, 0 where there is none, and where there is one."""
        values = np.zeros((len(rows), len(documents)), dtype=np.float32)
        known = np.zeros(values.shape, dtype=bool)
        text, column, place = matched(self.documents[rows], documents)
        values[text, place] = self.scores[rows[text], column]
        known[text, place] = True
        return values, known


@dataclass(frozen=True)
class LayerTable:
    """What the layers of one teacher give each text's own documents.

    `documents` `(texts, k)`, -1 where there is none; `places` `(texts, k)`: their rows in `values` `(pairs, layers)`.
    """

    documents: np.ndarray
    places: np.ndarray
    values: np.ndarray  # memory-mapped

    def of(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Scores `(n, layers, m)` of sorted `documents` `(m,)`, 0 where there is none, and where there is, `(n, m)`."""
        found = np.zeros((len(rows), len(documents), len(layers)), dtype=np.float32)
        known = np.zeros(found.shape[:2], dtype=bool)
        text, column, place = matched(self.documents[rows], documents)
        found[text, place] = self.values[self.places[rows[text], column]][:, list(layers)]
        known[text, place] = True
        return found.transpose(0, 2, 1), known


def matched(own: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where texts' own documents `(n, k)` are among sorted `documents` `(m,)`: text, column and place, each `(p,)`."""
    place = np.searchsorted(documents, own).clip(max=max(0, len(documents) - 1))
    found = documents[place] == own if len(documents) else np.zeros_like(place, dtype=bool)
    text, column = np.nonzero(found)
    return text, column, place[text, column]


@dataclass(frozen=True)
class PairTable:
    """One teacher's embeddings of texts with their own documents.

    `documents` `(texts, p)`; `values` `(embedded texts, p, dim)`; `place` `(texts,)` says which of them are a text's,
    -1 of one that was not embedded.
    """

    documents: np.ndarray
    values: np.ndarray  # memory-mapped
    place: np.ndarray

    @cached_property
    def unit(self) -> float:
        """Mean length over an even sample of texts, each with its nearest document."""
        return _mean_length(self.values[:, 0])

    def of(self, rows: np.ndarray, documents: np.ndarray) -> Pairs:
        """Those of some texts, and where their documents are among sorted `documents` `(m,)`."""
        own, at = self.documents[rows], self.place[rows]
        place = np.searchsorted(documents, own).clip(max=max(0, len(documents) - 1))
        known = documents[place] == own if len(documents) else np.zeros(own.shape, dtype=bool)
        given = np.broadcast_to(at[:, None] >= 0, own.shape).copy()
        masks = (torch.from_numpy(each).to(device()) for each in (given, place, known))
        return Pairs(_tensor(self.values[at.clip(min=0)]) / self.unit, *masks)


class Teachers(Protocol):
    """Where targets come from."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """All that they follow from, besides weights and the stored vectors of the texts."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Teachers that train along with the student."""

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """What a running teacher computes for a piece of a batch, by name; with gradient where it trains.

        `layers`: those of its layers, numbered from 0, that are paired with the student's.
        """

    def targets(self, made: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """What all teachers say of these texts and documents; `made` is what `forward` gave, or leaves in its place."""


@dataclass(frozen=True)
class StoredTeachers:
    """The index teacher's vectors as `embed` wrote them, and other teachers' scores as `score` did."""

    vectors: np.ndarray  # (texts, dim), memory-mapped
    documents: np.ndarray  # (documents, dim), memory-mapped
    cosine: bool
    lengths: np.ndarray | None = None  # (texts,)
    scores: Mapping[str, ScoreTable] = field(default_factory=dict)
    pairs: Mapping[str, PairTable] = field(default_factory=dict)
    modules: Sequence[nn.Module] = ()

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Without the vectors of the texts, which every training hashes."""
        found = {"documents": self.documents}
        if self.lengths is not None:
            found["lengths"] = self.lengths
        for name, table in self.scores.items():
            found |= {f"scores.{name}.documents": table.documents, f"scores.{name}.scores": table.scores}
        for name, embedded in self.pairs.items():
            found |= {f"pairs.{name}.documents": embedded.documents, f"pairs.{name}.values": embedded.values}
            found[f"pairs.{name}.place"] = embedded.place
        return found

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """Nothing runs."""
        return {}

    def targets(self, made: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """Read what is stored."""
        queries, candidates = _tensor(self.vectors[rows]), _tensor(self.documents[documents])
        return self.with_scores(queries, candidates, rows, documents)

    def with_scores(self, queries: Tensor, candidates: Tensor, rows: np.ndarray, documents: np.ndarray) -> Targets:
        """Targets of these vectors, with the stored scores and lengths of the same texts."""
        values = similarities(queries, candidates, cosine=self.cosine)
        scores = {"": Scores(values, torch.ones_like(values, dtype=torch.bool))}
        for name, table in self.scores.items():
            given, known = table.of(rows, documents)
            scores[name] = Scores(_tensor(given), torch.from_numpy(known).to(device()))
        lengths = None if self.lengths is None else _tensor(self.lengths[rows])
        pairs = {name: table.of(rows, documents) for name, table in self.pairs.items()}
        return Targets(queries, candidates, self.cosine, lengths, scores, pairs)


@dataclass(frozen=True)
class OnlineTeacher:
    """The index teacher itself, frozen, reads each text again; documents, scores and lengths are the stored ones."""

    tower: SentenceTransformer
    texts: Sequence[str]
    stored: StoredTeachers
    precision: Precision = "fp32"
    modules: Sequence[nn.Module] = ()

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The stored ones."""
        return self.stored.arrays

    def forward(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """Its embeddings of the texts, `(n, dim)`, without gradient."""
        with torch.inference_mode(), autocast(self.precision):
            made = self.tower.encode_query(
                [self.texts[row] for row in rows], show_progress_bar=False, convert_to_tensor=True
            )
        return {"teacher": made.float().clone()}

    def targets(self, made: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Targets:
        """As stored ones, but for the vectors of the texts."""
        candidates = _tensor(self.stored.documents[documents])
        return self.stored.with_scores(made["teacher"], candidates, rows, documents)


def _tensor(values: np.ndarray) -> Tensor:
    """Float32, where models run."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(device())
