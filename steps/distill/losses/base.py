"""What a loss is: its knobs in params.yaml, what it needs, and a value for each text of a batch.

n texts, m candidate documents, dim dimensions of the teacher's space.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from slimtower.common.settings import Strict
from steps.core.params import Capability
from steps.distill.providers import Provider, Setting

Dims = list[Annotated[int, Field(ge=1)]]  # of Matryoshka embeddings


class Need(StrEnum):
    """What a loss wants loaded besides the teacher's vectors of the texts; what else it needs a provider has."""

    CANDIDATES = "candidates"  # documents of the batch, as the index teacher embeds them
    LABELS = "labels"  # which candidate is a text's positive
    SCORES = "scores"  # of the loss' teacher, or of its layers, for the candidates
    OWN_DOCUMENTS = "own documents"  # a document tower that trains: `towers: symmetric`
    JOINT = "joint"  # a teacher that trains along: `targets: joint`


class Scoring(NamedTuple):
    """What a loss' `teacher` gives, and what the stage `score` keeps of it."""

    teacher: str
    kind: str
    gives: frozenset[Capability]
    embeds: str | None  # of pairs: see steps.teach.kinds.base
    layers: bool
    pairs: int


@dataclass(frozen=True)
class Units:
    """Mean lengths of the index teacher's vectors; losses see all vectors divided by them, so weights mean the same."""

    queries: float = 1.0
    documents: float = 1.0


@dataclass(frozen=True)
class Outputs:
    """What a student makes of the texts, and of the candidates where its own document tower reads them."""

    queries: Tensor  # (n, dim), as they are served
    raw: Tensor  # (n, dim), before the final normalisation; the same where there is none
    documents: Tensor | None = None  # (m, dim)
    _scored: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list, repr=False)  # documents, scores

    def scores(self, targets: "Targets") -> Tensor:
        """Score of each text and candidate, `(n, m)`: to its own documents, or the teacher's; computed once for all."""
        documents = targets.documents if self.documents is None else self.documents
        for scored, scores in self._scored:
            if scored is documents:
                return scores
        scores = similarities(*exact(self.queries, documents), cosine=targets.cosine)
        self._scored.append((documents, scores))
        return scores

    def truncate(self, dim: int) -> "Outputs":
        """The first `dim` dimensions of all embeddings, at their old length."""
        documents = None if self.documents is None else truncate(self.documents, dim)
        return replace(self, queries=truncate(self.queries, dim), raw=truncate(self.raw, dim), documents=documents)

    def measured_in(self, units: Units) -> "Outputs":
        """All embeddings in these units."""
        documents = None if self.documents is None else self.documents / units.documents
        return replace(self, queries=self.queries / units.queries, raw=self.raw / units.queries, documents=documents)


@dataclass(frozen=True)
class Scores:
    """A teacher's scores of the candidates `(n, m)`, and which of them it gave."""

    values: Tensor
    is_scored: Tensor


@dataclass(frozen=True)
class Targets:
    """What the teachers say of the same texts and candidates."""

    queries: Tensor  # (n, dim)
    documents: Tensor  # (m, dim), the index teacher's
    cosine: bool  # whether the index teacher compares by cosine, else by inner product
    scores: Mapping[str, Scores] = field(default_factory=dict)  # by teacher; "" is the index teacher
    provided: Mapping[str, Any] = field(default_factory=dict)  # by loss, what its provider has

    def fixed(self) -> "Targets":
        """The same for a loss that moves no teacher: queries and scores without gradient."""
        return replace(
            self,
            queries=self.queries.detach(),
            scores={name: replace(scores, values=scores.values.detach()) for name, scores in self.scores.items()},
        )

    def truncate(self, dim: int) -> "Targets":
        """The first `dim` dimensions of the vectors, at their old length; scores stay those of whole vectors."""
        return replace(self, queries=truncate(self.queries, dim), documents=truncate(self.documents, dim))

    def measured_in(self, units: Units) -> "Targets":
        """Vectors and the index teacher's inner products in these units; other scores stay as they are."""
        scores = dict(self.scores)
        if "" in scores and not self.cosine:
            scores[""] = replace(scores[""], values=scores[""].values / (units.queries * units.documents))
        return replace(
            self,
            queries=self.queries / units.queries,
            documents=self.documents / units.documents,
            scores=scores,
        )


@dataclass(frozen=True)
class Batch:
    """Which candidate is a text's label, which count for it, and which are its own, booleans `(n, m)`.

    A text has one label or none. Its other positives do not count: they would serve as its negatives. Its own are its
    label and the documents nearest to it; the others are there for other texts of the batch.
    """

    label: Tensor
    counts: Tensor
    is_own: Tensor

    @property
    def labelled(self) -> Tensor:
        """Which texts have a label, boolean `(n,)`."""
        return self.label.any(dim=1)


class Loss(Strict, ABC):
    """Base of all losses. A subclass in a module of this package is known by its `kind` in params.yaml.

    A student's objective is the sum of `weight` times the mean over the batch of each loss. With `dims` the mean over
    the whole vectors and the vectors truncated to each of these dimensions (Matryoshka, Kusupati et al. 2022).
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    moves_teacher: ClassVar[bool] = False  # whether a teacher that trains along learns from its scores here
    takes_teacher: ClassVar[bool] = False  # whether it can name another teacher, though it needs no scores
    is_single: ClassVar[bool] = False  # whether a training has one such loss at most
    looks_inside: ClassVar[bool] = False  # whether it reads more of the index teacher than its vectors
    undivided: ClassVar[str] = ""  # what it does, if it has no use for first dimensions

    kind: str
    """What the loss is."""
    weight: float = Field(default=1.0, gt=0)
    """Factor in the sum."""
    teacher: str = ""
    """"" = the index teacher; losses of scores can learn those of one of score.teachers instead."""
    dims: Dims = Field(default_factory=list)
    """First dimensions along which it is taken as well (Matryoshka)."""

    @model_validator(mode="after")
    def _dims_are_of_embeddings(self) -> Self:
        if self.dims and self.undivided:
            raise ValueError(f"dims are of a student's embeddings, {self.kind} {self.undivided}; leave dims out")
        return self

    @abstractmethod
    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        """Value of each text, `(n,)`, in float32 or float64; 0 for one that does not count."""

    def automatic(self, setting: Setting) -> dict[str, float]:
        """Values of its knobs that are `auto`, by name."""
        return {}

    def provider(self, setting: Setting) -> Provider | None:
        """What loads and hands out what it needs besides vectors, scores and labels; None where that is all."""
        return None

    def complain_of_start(self, start: str) -> str:
        """Why a student that starts so (layers, base, fresh, static, adapter) cannot learn it; "" if it can."""
        return ""

    def complain_of_scoring(self, scoring: Scoring) -> str:
        """Why the stage `score`, or its `teacher`, does not give what it learns; "" if they do."""
        return ""

    @property
    def name(self) -> str:
        """What metrics call it."""
        return f"{self.kind}@{self.teacher}" if self.teacher else self.kind

    @property
    def wants_labels(self) -> bool:
        """Whether it cannot do what it is asked without any text that has a label."""
        return Need.LABELS in self.needs


def truncate(vectors: Tensor, dim: int) -> Tensor:
    """The first `dim` dimensions of `(n, d)` vectors, at the length of the whole."""
    return functional.normalize(vectors[:, :dim], dim=1) * vectors.norm(dim=1, keepdim=True)


def similarities(queries: Tensor, documents: Tensor, *, cosine: bool) -> Tensor:
    """Cosine or inner product of every pair, `(n, m)`."""
    if cosine:
        queries, documents = functional.normalize(queries, dim=1), functional.normalize(documents, dim=1)
    return queries @ documents.T


def exact(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in float32, in float64 where one of them is."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)
