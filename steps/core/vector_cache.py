"""Embeddings by content: shards of (text digest, vector, length) that survive a killed run.

A cache folder belongs to one tower, role, prompt, maximum length and precision. Within it each shard is a folder
that appeared by rename, so what is there is whole, and a killed run repeats at most the shard it was in.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.core.files import cache_root, staged_folder
from steps.core.precision import Precision, resolve_precision
from steps.core.progress import progress
from steps.core.tables import Role
from steps.core.towers import Embeddings, encode_with_lengths, route

WINDOW_SHARDS = 16  # sorted by length together: enough that a batch pads little

_FORMAT = 2  # 1 had no lengths

Encode = Callable[[list[str]], Embeddings]


class Texts(Protocol):
    """Texts that can be looped over again, in memory or read anew each time."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


class VectorCache:
    """Vectors of one tower in one role and their lengths, kept on disk by the sha256 of their text."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype = folder, np.dtype(dtype)
        self._where: dict[bytes, tuple[Path, int]] = {}
        for shard in sorted(folder.glob("shard-*")):
            self._enter(shard)

    def _enter(self, shard: Path) -> None:
        for row, key in enumerate(np.load(shard / "keys.npy")):
            self._where[key.tobytes()] = (shard, row)

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
        embedded = encode([text for _, text in shard])
        with staged_folder(target) as staging:
            np.save(staging / "keys.npy", keys)
            np.save(staging / "vectors.npy", embedded.vectors.astype(self.dtype))
            np.save(staging / "lengths.npy", embedded.lengths.astype(np.float32))
        self._enter(target)

    def write(self, texts: Texts, target: Path, dim: int, lengths: Path | None = None) -> None:
        """Write the vectors of the texts as one `.npy` of `(len(texts), dim)`; KeyError for a text not filled.

        With `lengths` their norms before normalisation, float32 `(len(texts),)`, as another.
        """
        vectors = np.lib.format.open_memmap(target, mode="w+", dtype=self.dtype, shape=(len(texts), dim))
        norms = np.zeros(len(texts), dtype=np.float32)
        rows: dict[Path, list[tuple[int, int]]] = {}
        for position, text in enumerate(texts):
            shard, row = self._where[text_key(text)]
            rows.setdefault(shard, []).append((position, row))
        for shard, pairs in rows.items():
            positions, shard_rows = (list(column) for column in zip(*pairs, strict=True))
            vectors[positions] = np.load(shard / "vectors.npy", mmap_mode="r")[shard_rows]
            if lengths:
                norms[positions] = np.load(shard / "lengths.npy")[shard_rows]
        vectors.flush()
        if lengths:
            np.save(lengths, norms)


def embed_once(
    tower: SentenceTransformer,
    fingerprint: str,
    role: Role,
    texts: Texts,
    target: Path,
    *,
    dtype: str,
    precision: Precision,
    batch_size: int,
    shard_texts: int,
    what: str,
    lengths: Path | None = None,
    caches: Path | None = None,
) -> int:
    """Write a tower's vectors of texts in their role as one `.npy` of `(len(texts), dim)`, and their lengths if asked.

    `fingerprint` is the id of the tower's. Only texts that it has not read before are read, `shard_texts` between two
    savings below SLIMTOWER_CACHE, or in the folder `caches`; returns how many.
    """
    tower = route(tower, role)
    settings = (_FORMAT, fingerprint, role, tower.prompts.get(role), tower.max_seq_length, dtype)
    key = sha256(repr((*settings, resolve_precision(precision))).encode()).hexdigest()
    cache = VectorCache((caches or cache_root() / "vectors") / key[:24], dtype)
    encode = partial(encode_with_lengths, tower, role=role, precision=precision, batch_size=batch_size)
    count = cache.fill(texts, encode, shard_texts, what)
    cache.write(texts, target, tower.get_embedding_dimension() or 0, lengths)
    return count


def text_key(text: str) -> bytes:
    """The 32 bytes under which a text's vector is kept."""
    return sha256(text.encode("utf-8")).digest()
