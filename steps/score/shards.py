"""Scores by content: a shard of texts and documents that was scored before is not scored again."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from steps.core.files import cache_root, staged_file
from steps.core.vector_cache import text_key
from steps.score.kinds.base import Scorer


class ScoreShards:
    """Scores of one teacher, computed by one code in one precision, below SLIMTOWER_CACHE.

    A shard is a file that appeared by rename, named by the digest of its texts and of each one's documents in order.
    `computed` counts the shards that were not there.
    """

    def __init__(self, settings: Sequence[str], documents: np.ndarray) -> None:
        """`settings`: all that a score depends on besides its texts; `documents`: digests `(documents, 32)`, uint8."""
        self.folder = cache_root() / "scores" / sha256(repr(tuple(settings)).encode()).hexdigest()[:24]
        self.documents = documents
        self.computed = 0

    def scores(self, scorer: Scorer, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Scores of texts with their documents, `(texts, k)` positions: float32 `(texts, k)`, read or computed."""
        file = self._file(texts, documents)
        if file.is_file():
            return np.load(file)
        scores = scorer.scores(texts, documents)
        with staged_file(file) as staging, staging.open("wb") as handle:
            np.save(handle, scores)
        self.computed += 1
        return scores

    def _file(self, texts: list[str], documents: np.ndarray) -> Path:
        key = sha256(f"{documents.shape}".encode())
        for text in texts:
            key.update(text_key(text))
        key.update(self.documents[documents].tobytes())
        return self.folder / f"{key.hexdigest()}.npy"
