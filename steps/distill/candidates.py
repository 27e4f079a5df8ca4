"""The documents that a batch of queries is scored against, and which of them are right."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from steps.distill.losses.base import Batch


@dataclass(frozen=True)
class CandidateBatch:
    """Document rows `(m,)`, sorted, that a batch's texts share; `label`, `counts` and `is_own` `(n, m)`: see Batch."""

    documents: np.ndarray
    label: np.ndarray
    counts: np.ndarray
    is_own: np.ndarray

    def batch(self, texts: np.ndarray, device: torch.device) -> Batch:
        """Those of some texts, by position or mask, as losses read them."""
        return Batch(*(torch.from_numpy(mask[texts]).to(device) for mask in (self.label, self.counts, self.is_own)))


@dataclass(frozen=True)
class Candidates:
    """Of every text: its positive documents (none for most), and the documents nearest to the teacher's embedding."""

    positives: Mapping[int, np.ndarray]  # text row -> document rows
    nearest: np.ndarray  # (texts, k), the nearest first
    seed: int

    def of(self, rows: np.ndarray, step: int) -> CandidateBatch:
        """One positive of each row, drawn by seed and step, and all its nearest documents: the batch's candidates."""
        rng = np.random.default_rng((self.seed, 5, step))
        positives = [self.positives.get(row) for row in rows.tolist()]
        chosen = [-1 if docs is None else int(docs[0] if len(docs) == 1 else rng.choice(docs)) for docs in positives]
        labelled = np.array([document for document in chosen if document >= 0], dtype=np.int64)
        documents = np.unique(np.concatenate([labelled, self.nearest[rows].reshape(-1)]))
        label = documents[None, :] == np.array(chosen)[:, None]
        counts = np.ones_like(label)
        for position, docs in enumerate(positives):
            if docs is not None and len(docs) > 1:
                counts[position] = label[position] | ~np.isin(documents, docs)
        is_own = label.copy()
        np.put_along_axis(is_own, np.searchsorted(documents, self.nearest[rows]), True, axis=1)
        return CandidateBatch(documents, label, counts, is_own)

    def own_mask(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Which of `documents` `(m,)` are among a text's nearest or its positives, boolean `(n, m)`."""
        none = np.zeros(0, dtype=np.int64)
        listed = [np.append(self.nearest[row], self.positives.get(row, none)) for row in rows.tolist()]
        return np.stack([np.isin(documents, docs) for docs in listed])

    def documents_of(self, texts: np.ndarray) -> np.ndarray:
        """Rows of the documents, ascending, that a batch of these texts may be compared with."""
        rows = [np.asarray(self.nearest[texts]).reshape(-1)]
        rows += [self.positives[row] for row in texts.tolist() if row in self.positives]
        return np.unique(np.concatenate(rows)).astype(np.int64)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        owners = [[row, document] for row, docs in sorted(self.positives.items()) for document in docs.tolist()]
        return {"positives": np.array(owners), "nearest": self.nearest}
