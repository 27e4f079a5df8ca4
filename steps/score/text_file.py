"""Texts of documents on disk, so that a scorer may read any of them: UTF-8, one behind the other."""

from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts


class TextFile:
    """A file of texts, and where each of them ends."""

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
