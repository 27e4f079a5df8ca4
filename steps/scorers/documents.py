"""Documents that scorers read more than once: their texts, and their vectors, on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts
from steps.retrieval.late_interaction import PIECE, TokenVectors
from steps.scorers.base import ReadTexts, check_finite


class TextFile:
    """A file of texts, UTF-8, one behind the other, and where each of them ends."""

    def __init__(self, path: Path, texts: Texts) -> None:
        lengths = np.zeros(len(texts) + 1, dtype=np.int64)
        with path.open("wb") as handle:
            for row, text in enumerate(texts):
                lengths[row + 1] = handle.write(text.encode("utf-8"))
        self.path, self.ends = path, np.cumsum(lengths)

    def read(self, rows: np.ndarray) -> dict[int, str]:
        """Some of them, by row."""
        texts = {}
        with self.path.open("rb") as handle:
            for row in rows.tolist():
                handle.seek(int(self.ends[row]))
                texts[row] = handle.read(int(self.ends[row + 1] - self.ends[row])).decode("utf-8")
        return texts


class VectorReranker:
    """Compares vectors of queries with those of candidates, each of which is read once; they are kept on disk."""

    def __init__(
        self,
        scratch: Path,
        dim: int,
        embed: Callable[..., list[np.ndarray]],
        compare: Callable[[np.ndarray, list[np.ndarray]], np.ndarray],
    ) -> None:
        """`embed(texts, role=)` gives float `(vectors, dim)` of each text; `compare` a score for each of the second."""
        self.vectors, self.embed, self.compare = TokenVectors(scratch, dim), embed, compare
        self.positions: dict[int, int] = {}

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> list[np.ndarray]:
        """As of `Reranker`."""
        rows = np.unique(np.concatenate(candidates))
        unread = np.array([row for row in rows.tolist() if row not in self.positions], dtype=np.int64)
        query_vectors = self.embed(queries, role="query")
        texts = list(read_texts(unread)) if len(unread) else []
        for start in range(0, len(texts), PIECE):
            self.vectors.append(self.embed(texts[start : start + PIECE], role="document"))
        self.positions |= {row: len(self.positions) + number for number, row in enumerate(unread.tolist())}
        return [
            check_finite(self.compare(query, [self.vectors[self.positions[row]] for row in document_rows.tolist()]))
            for query, document_rows in zip(query_vectors, candidates, strict=True)
        ]
