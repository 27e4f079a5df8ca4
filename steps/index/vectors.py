"""The vectors that one index is made of: some rows of a memory-mapped matrix, read a chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slimtower.serving.dims import truncate

CHUNK = 16384


@dataclass(frozen=True)
class Vectors:
    """Rows of `source` `(n, teacher's dim)`, truncated to their first `dim` dimensions."""

    source: np.ndarray
    rows: np.ndarray
    dim: int

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: np.ndarray | slice) -> np.ndarray:
        """The vectors at these positions, float32 `(positions, dim)`; not copied where they lie in one piece."""
        rows = self.rows[positions]
        together = len(rows) > 0 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
        return truncate(self.source[rows[0] : rows[0] + len(rows)] if together else self.source[rows], self.dim)

    def chunks(self) -> Iterator[np.ndarray]:
        """All vectors in order, at most CHUNK at a time."""
        for start in range(0, len(self), CHUNK):
            yield self.take(slice(start, start + CHUNK))

    def at(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """These positions and their vectors, at most CHUNK at a time."""
        for start in range(0, len(positions), CHUNK):
            chunk_positions = positions[start : start + CHUNK]
            yield chunk_positions, self.take(chunk_positions)

    def slice(self, start: int, stop: int) -> "Vectors":
        """The vectors from position `start` to before `stop`."""
        return Vectors(self.source, self.rows[start:stop], self.dim)

    def sample(self, size: int, seed: int) -> np.ndarray:
        """A seeded sample of at most `size` vectors in order, float32 `(sample, dim)`."""
        if size >= len(self):
            return self.take(slice(None))
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), size=size, replace=False)))

    def digests(self) -> np.ndarray:
        """uint64 `(n,)`: equal vectors have equal digests, different ones hardly ever."""
        factors = np.random.default_rng(0).integers(0, 2**64, size=self.dim, dtype=np.uint64) | np.uint64(1)
        digests = [np.einsum("ij,j->i", chunk.view(np.uint32), factors) for chunk in self.chunks()]
        return np.concatenate(digests) if digests else np.zeros(0, dtype=np.uint64)
