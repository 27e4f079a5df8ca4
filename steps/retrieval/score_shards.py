"""Scores, or embeddings of pairs, by content: a shard of texts and documents that was made is not made again."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from slimtower.common.files import cache_root, staged_file
from steps.core.vector_store import loaded, text_key

Compute = Callable[[list[str], np.ndarray], np.ndarray]
"""What is made of some texts and of each one's documents, `(texts, k)` positions: float32 `(texts, k, ...)`."""


class ScoreShards:
    """What one teacher makes of pairs, computed by one code in one precision, below SLIMTOWER_CACHE.

    A shard is a file that appeared by rename, named by the digest of its texts and of each one's documents in order.
    `computed` counts the shards that were not there.
    """

    def __init__(self, settings: Sequence[str], documents: np.ndarray) -> None:
        """`settings`: all that it depends on besides its texts; `documents`: digests `(documents, 32)`, uint8."""
        self.folder = cache_root() / "scores" / sha256(repr(tuple(settings)).encode()).hexdigest()[:24]
        self.documents = documents
        self.computed = 0

    def get_or_compute(self, compute: Compute, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """What `compute` makes of texts and their documents, `(texts, k)` positions; read from the file if it is there.

        Values that are not finite are returned and not kept: another try, or another machine, computes them anew.
        """
        file = self._file(texts, documents)
        if file.is_file() and np.isfinite(cached := np.array(loaded(file, file))).all():
            return cached
        values = compute(texts, documents)
        if not np.isfinite(values).all():
            return values
        with staged_file(file) as staging, staging.open("wb") as handle:
            np.save(handle, values)
        self.computed += 1
        return values

    def _file(self, texts: list[str], documents: np.ndarray) -> Path:
        key = sha256(f"{documents.shape}".encode())
        for text in texts:
            key.update(text_key(text))
        key.update(self.documents[documents].tobytes())
        return self.folder / f"{key.hexdigest()}.npy"
