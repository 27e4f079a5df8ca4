"""Embeddings by content: shards of (text digest, vector) that survive a killed run.

A cache folder belongs to one teacher, role, prompt, maximum length and precision. Within it each shard is a folder
that appeared by rename, so what is there is whole, and a killed run repeats at most the shard it was in.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np

from steps.core.files import staged_folder
from steps.core.progress import progress

Encode = Callable[[list[str]], np.ndarray]


class VectorCache:
    """Vectors of one tower in one role, kept on disk by the sha256 of their text."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder = folder
        self.dtype = np.dtype(dtype)
        self._where: dict[bytes, tuple[Path, int]] = {}
        for shard in sorted(folder.glob("shard-*")):
            self._enter(shard)

    def _enter(self, shard: Path) -> None:
        for row, key in enumerate(np.load(shard / "keys.npy")):
            self._where[key.tobytes()] = (shard / "vectors.npy", row)

    def fill(self, texts: Iterable[str], encode: Encode, shard_texts: int, what: str) -> int:
        """Embed the texts not yet here, shard by shard, longest first; returns how many were embedded."""
        missing = {key: text for text in texts if (key := text_key(text)) not in self._where}
        order = sorted(missing.items(), key=lambda item: (-len(item[1]), item[0]))
        shards = [order[start : start + shard_texts] for start in range(0, len(order), shard_texts)]
        for shard in progress(shards, len(shards), what):
            keys = np.stack([np.frombuffer(key, dtype=np.uint8) for key, _ in shard])
            target = self.folder / f"shard-{sha256(keys.tobytes()).hexdigest()[:16]}"
            vectors = encode([text for _, text in shard]).astype(self.dtype)
            with staged_folder(target) as staging:
                np.save(staging / "keys.npy", keys)
                np.save(staging / "vectors.npy", vectors)
            self._enter(target)
        return len(missing)

    def write(self, texts: list[str], target: Path, width: int) -> None:
        """Write the vectors of the texts as one `.npy` of `(len(texts), width)`; KeyError for a text not filled."""
        out = np.lib.format.open_memmap(target, mode="w+", dtype=self.dtype, shape=(len(texts), width))
        rows: dict[Path, list[tuple[int, int]]] = {}
        for position, text in enumerate(texts):
            path, row = self._where[text_key(text)]
            rows.setdefault(path, []).append((position, row))
        for path, pairs in rows.items():
            positions, shard_rows = (list(column) for column in zip(*pairs, strict=True))
            out[positions] = np.load(path, mmap_mode="r")[shard_rows]
        out.flush()


def text_key(text: str) -> bytes:
    """The 32 bytes under which a text's vector is kept."""
    return sha256(text.encode("utf-8")).digest()
