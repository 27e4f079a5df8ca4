"""What a loss needs besides the vectors, scores and labels that every loss sees.

A loss names its provider (`Loss.provider`). The provider loads and checks what it needs once for a training, and hands
it out a batch at a time, as `targets.provided[loss.name]`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from steps.distill.tokens import Tokens
from steps.encoders.precision import Precision


class Setting(NamedTuple):
    """What a provider can be made of: the student, the index teacher's tower, and what earlier stages have written."""

    student: Any  # steps.distill.student.Student
    teacher: Path
    sources: Any  # steps.distill.sources.Sources
    precision: Precision


class Provider:
    """Base of all providers; a subclass overrides what it has. `rows` are of the texts, `documents` of the corpus."""

    head: nn.Module | None = None
    """A module between student and teacher, found in `outputs.heads`: it trains along, and is forgotten afterwards."""

    has: np.ndarray | None = None
    """Which texts it has something of, boolean `(texts,)`; None = all. The others do not train."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """What its values follow from: a checkpoint of other arrays is not continued."""
        return {}

    def forward(self, tokens: Tokens, rows: np.ndarray) -> dict[str, Tensor]:
        """What it computes of a piece of the batch, by name; with gradient where it trains the student."""
        return {}

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> Any:
        """What the loss is given for these texts and candidates; `tensors` come from `forward`, or stand in for it."""
        return None
