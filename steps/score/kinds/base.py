"""What every teacher that scores can do."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from steps.core.vector_store import Texts
from steps.score.params import ScoreParams

if TYPE_CHECKING:  # params are checked without what reads texts, which takes seconds to load
    from steps.encoders.cut_texts import Cut


class Scorer(ABC):
    """A teacher that says how well texts and documents go together; a subclass is for teachers of its `kind`."""

    kind: ClassVar[str]
    embeds: Literal["pooled", "joint"] | None = None  # of a pair: its text, given the document, or both in one vector

    layered: ClassVar[bool] = False  # whether each of its layers scores as well

    @abstractmethod
    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> None:
        """For the teacher in `teach`, whose tower has that fingerprint's id, and these documents.

        `scratch` is a file that it may write, and that is removed after it.
        """

    @abstractmethod
    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Score of each text with each of its documents, `(texts, k)` positions among the given ones.

        float32 `(texts, k)`; higher is better.
        """

    def pair_embeddings(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Embedding of each text with each of its documents, `(texts, k)` positions: float32 `(texts, k, dim)`.

        Asked only of a teacher that has `embeds`.
        """
        raise NotImplementedError

    def announce(self, texts: list[str]) -> None:  # noqa: B027  # most cost nothing
        """Say what it costs to score these texts, before any of them is; UserError where that is more than allowed."""

    def cut(self, pairs: Sequence[tuple[str, str]]) -> "Cut | None":
        """How many of these texts with their documents it reads not to their end; None where that is not known."""
        return None

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Score by each layer, the first one first (LEAD, Sec. 3.2): float32 `(texts, k, layers)`.

        Asked only of a teacher that is `layered`.
        """
        raise NotImplementedError

    def finish(self) -> None:  # noqa: B027  # most keep nothing
        """Remove what it keeps beside `scratch`, once all scores are written."""
