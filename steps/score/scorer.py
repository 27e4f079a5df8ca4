"""What every teacher that scores can do."""

from typing import Protocol

import numpy as np


class Scorer(Protocol):
    """A teacher that says how well texts and documents go together; it has been given the documents."""

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Score of each text with each of its documents, `(texts, k)` positions among the given ones.

        float32 `(texts, k)`; higher is better.
        """
