"""The documents that a batch of queries is scored against, and which of them are right."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Drawn:
    """Document rows `(m,)`, sorted, that a batch's texts share; `label`, `counts` and `own` `(n, m)`: see Batch."""

    documents: np.ndarray
    label: np.ndarray
    counts: np.ndarray
    own: np.ndarray


@dataclass(frozen=True)
class Candidates:
    """Of every text: its positive documents (none for most), and the documents nearest to the teacher's embedding."""

    positives: Mapping[int, np.ndarray]  # text row -> document rows
    nearest: np.ndarray  # (texts, k), the nearest first
    seed: int

    def of(self, rows: np.ndarray, step: int) -> Drawn:
        """One positive of each row, drawn by seed and step, and all its nearest documents: the batch's candidates."""
        rng = np.random.default_rng((self.seed, 5, step))
        known = [self.positives.get(row) for row in rows.tolist()]
        drawn = [-1 if own is None else int(rng.choice(own)) for own in known]
        documents = np.unique(np.concatenate([[each for each in drawn if each >= 0], self.nearest[rows].reshape(-1)]))
        documents = documents.astype(np.int64)
        label = documents[None, :] == np.array(drawn)[:, None]
        counts = np.ones_like(label)
        for position, own in enumerate(known):
            if own is not None and len(own) > 1:
                counts[position] = label[position] | ~np.isin(documents, own)
        own_documents = label.copy()
        np.put_along_axis(own_documents, np.searchsorted(documents, self.nearest[rows]), True, axis=1)
        return Drawn(documents, label, counts, own_documents)

    def own(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Which of `documents` `(m,)` are among a text's nearest or its positives, boolean `(n, m)`."""
        none = np.zeros(0, dtype=np.int64)
        listed = [np.append(self.nearest[row], self.positives.get(row, none)) for row in rows.tolist()]
        return np.stack([np.isin(documents, each) for each in listed])

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that a batch's candidates follow from."""
        owners = [[row, document] for row, own in sorted(self.positives.items()) for document in own.tolist()]
        return {"positives": np.array(owners), "nearest": self.nearest}
