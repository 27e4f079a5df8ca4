"""What a loss needs besides the vectors, scores and labels that every loss sees.

A loss names its provider (`Loss.provider`). The provider loads and checks once for a training what the loss needs, and
hands it out a batch at a time, as `targets.provided[loss.name]`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision


class Setting(NamedTuple):
    """What a provider can be made of: student, teachers, candidates, and what earlier stages have written."""

    student: Any  # steps.distill.student.Student
    teacher: Path  # the index teacher's tower
    teachers: Any  # steps.distill.targets.Teachers, one of which may train along
    sources: Any  # steps.distill.sources.Sources
    candidates: Any  # steps.distill.candidates.Candidates; None if no loss compares documents
    document_tokens: Tokens | None  # of all documents, if the student's own tower reads them
    training: np.ndarray  # rows of the texts that train
    units: Any  # steps.distill.losses.base.Units
    cosine: bool  # whether the index teacher compares by cosine, else by inner product
    precision: Precision
    seed: int


class Provider:
    """Base of all providers; a subclass overrides what it has. `rows` are of the texts, `documents` of the corpus."""

    head: nn.Module | None = None
    """A module that the loss itself goes through: it trains along, and is forgotten afterwards."""

    module: nn.Module | None = None
    """What `embed` or `forward` go through, if it trains or changes: a checkpoint has it, a student does not."""

    has: np.ndarray | None = None
    """Which texts it has something of, boolean `(texts,)`; None = all. The others do not train."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """What its values follow from: a checkpoint of other arrays is not continued."""
        return {}

    def prepare(self, step: int, rows: np.ndarray, candidates: Any) -> None:
        """Get ready for a step, from 1, on these rows and their `CandidateBatch`; called before each of its pieces."""

    def embed(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """Embeddings of a piece, as `Student.embed`, and states read on the way. One provider may have them."""
        return None

    def forward(self, tokens: Tokens, rows: np.ndarray) -> dict[str, Tensor]:
        """What it computes of a piece of the batch, by name; with gradient where it trains the student."""
        return {}

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Any:
        """What the loss is given for these texts and candidates.

        `tensors` are what teachers that run computed, and what it computed itself, or stand in for it: those of
        `forward` by their names, and what `embed` read as `queries.states` and `documents.states`.
        """
        return None
