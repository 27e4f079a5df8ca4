"""Embeddings by content: shards of (text digest, vector) that survive a killed run.

A cache folder belongs to one teacher, role, prompt, maximum length and precision. Within it each shard is a folder
that appeared by rename, so what is there is whole, and a killed run repeats at most the shard it was in.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from steps.core.files import staged_folder
from steps.core.progress import progress

WINDOW_SHARDS = 16  # sorted by length together: enough that a batch pads little

Encode = Callable[[list[str]], np.ndarray]


class Texts(Protocol):
    """Texts that can be looped over again, in memory or read anew each time."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


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
        """Embed the texts not yet here, shard by shard; returns how many were embedded.

        The texts are looped over twice. They are taken in windows of WINDOW_SHARDS shards, within each longest first,
        so that a killed run makes the same shards when it goes on.
        """
        window = WINDOW_SHARDS * shard_texts
        missing: set[bytes] = set()
        counts = [0]
        for place, text in enumerate(texts):
            if place and place % window == 0:
                counts.append(0)
            if (key := text_key(text)) not in self._where and key not in missing:
                missing.add(key)
                counts[-1] += 1
        shards = sum(-(-count // shard_texts) for count in counts)
        if missing:
            for shard in progress(self._shards(texts, window, shard_texts), shards, what):
                self._add(shard, encode)
        return len(missing)

    def _shards(self, texts: Iterable[str], window: int, shard_texts: int) -> Iterator[list[tuple[bytes, str]]]:
        """The missing texts with their keys, `shard_texts` at most at a time."""
        stream = iter(texts)
        while some := list(islice(stream, window)):
            missing = {key: text for text in some if (key := text_key(text)) not in self._where}
            order = sorted(missing.items(), key=lambda item: (-len(item[1]), item[0]))
            for start in range(0, len(order), shard_texts):
                yield order[start : start + shard_texts]

    def _add(self, shard: list[tuple[bytes, str]], encode: Encode) -> None:
        """Embed a shard and keep it."""
        keys = np.stack([np.frombuffer(key, dtype=np.uint8) for key, _ in shard])
        target = self.folder / f"shard-{sha256(keys.tobytes()).hexdigest()[:16]}"
        vectors = encode([text for _, text in shard]).astype(self.dtype)
        with staged_folder(target) as staging:
            np.save(staging / "keys.npy", keys)
            np.save(staging / "vectors.npy", vectors)
        self._enter(target)

    def write(self, texts: Texts, target: Path, width: int) -> None:
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
