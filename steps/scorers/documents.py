"""Documents that scorers read more than once: their texts, and their vectors, on disk."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts
from steps.retrieval.late_interaction import PIECE, TokenVectors
from steps.scorers.base import ReadTexts


class TextFile:
    """A file of texts, UTF-8, one behind the other, and where each of them ends."""

    def __init__(self, path: Path, texts: Texts) -> None:
        """Write them."""
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


class CandidateVectors:
    """Vectors of documents, which `embed` reads once each; they are kept on disk."""

    def __init__(self, scratch: Path, dim: int, embed: Callable[[list[str]], list[np.ndarray]]) -> None:
        """`embed` gives float `(vectors, dim)` of each text."""
        self.vectors, self.embed = TokenVectors(scratch, dim), embed
        self.positions: dict[int, int] = {}

    def of(self, candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> Iterator[list[np.ndarray]]:
        """Vectors of each query's candidates, rows of the corpus; those of one query at a time are in memory."""
        rows = np.unique(np.concatenate(candidates))
        unread = np.array([row for row in rows.tolist() if row not in self.positions], dtype=np.int64)
        texts = list(read_texts(unread)) if len(unread) else []
        for start in range(0, len(texts), PIECE):
            self.vectors.append(self.embed(texts[start : start + PIECE]))
        self.positions |= {row: len(self.positions) + number for number, row in enumerate(unread.tolist())}
        for document_rows in candidates:
            yield [self.vectors[self.positions[row]] for row in document_rows.tolist()]
