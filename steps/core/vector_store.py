"""Vectors, and scores of pairs, on disk by content: shards that survive a killed run.

Each shard is a folder that appeared by rename, so what is there is whole, and a killed run repeats at most the shard it
was in.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, staged_file, staged_folder
from steps.core.progress import Bar

_UNKNOWN = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}  # of file systems that take no room beforehand
_FILES = ("keys.npy", "vectors.npy", "lengths.npy")
WINDOW_SHARDS = 16  # sorted by length together: enough that a batch pads little
_TOKEN, _OVERHEAD = 4, 32  # bytes of a token; bytes that take as long to read as what every text takes beside its own
Compute = Callable[[list[str], np.ndarray], np.ndarray]
"""What is made of some texts and of each one's documents, `(texts, k)` positions: float32 `(texts, k, ...)`."""


def new_array(target: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap:
    """A `.npy` of zeros to be written piece by piece; OSError where the disk has no room for it.

    The room is taken at once. Without it a full disk shows when a page is written, and ends the process by SIGBUS.
    """
    array = np.lib.format.open_memmap(target, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with target.open("r+b") as handle:
            try:
                os.posix_fallocate(handle.fileno(), 0, max(1, target.stat().st_size))
            except OSError as error:
                if error.errno not in _UNKNOWN:
                    raise
    return array


@dataclass(frozen=True)
class Embeddings:
    """Vectors of texts, `(n, dim)`, and `(n,)` their norms before the tower's final Normalize; both float32."""

    vectors: np.ndarray
    lengths: np.ndarray


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
            if missing := [name for name in _FILES if not (shard / name).is_file()]:
                print(f"{shard}: has no {', '.join(missing)}; its texts are read again", file=sys.stderr)
            else:
                self._enter(shard)

    def _enter(self, shard: Path) -> None:
        for row, key in enumerate(loaded(shard / "keys.npy", shard)):
            self._where[key.tobytes()] = (shard, row)

    def fill(self, texts: Iterable[str], encode: Encode, shard_texts: int, label: str, longest: int = 0) -> int:
        """Embed the texts not yet here, shard by shard; returns how many were embedded.

        The texts are looped over twice. They are taken in windows of WINDOW_SHARDS shards, within each longest first,
        so that a killed run makes the same shards when it goes on. `longest`: tokens that are read of a text at most,
        for the time that the rest takes; 0 = all.
        """
        planned = self._windows(texts, shard_texts, set())
        work = np.cumsum([_work(text, longest) for window in planned for _, text in window])
        if not len(work):
            return 0
        with Bar(len(work), label, "texts", share=lambda done: float(work[done - 1] / work[-1])) as bar:
            count = 0
            for window in self._windows(texts, shard_texts):
                for start in range(0, len(window), shard_texts):
                    shard = window[start : start + shard_texts]
                    self.add([key for key, _ in shard], encode([text for _, text in shard]))
                    count += len(shard)
                    bar.reach(count)
        return count

    def _windows(
        self, texts: Iterable[str], shard_texts: int, seen: set[bytes] | None = None
    ) -> Iterator[list[tuple[bytes, str]]]:
        """The missing texts with their keys, window by window, the longest first; `seen` as `missing` has it."""
        stream = iter(texts)
        while chunk := list(islice(stream, WINDOW_SHARDS * shard_texts)):
            yield sorted(self.missing(chunk, seen), key=lambda item: (-len(item[1]), item[0]))

    def add(self, keys: list[bytes], embedded: Embeddings) -> None:
        """Keep the vectors of texts, given by their `text_key`, as one shard; UserError where one is not finite."""
        with np.errstate(over="ignore"):
            vectors = embedded.vectors.astype(self.dtype)
        if broken := int((~np.isfinite(vectors)).any(axis=1).sum()):
            raise UserError(
                f"{broken} of {len(keys)} vectors are not finite, as {self.dtype} or at all; set the stage's precision:"
                " fp32, or give a teacher that normalises"
            )
        digests = np.stack([np.frombuffer(key, dtype=np.uint8) for key in keys])
        target = self.folder / f"shard-{sha256(digests.tobytes()).hexdigest()[:16]}"
        if all((target / name).is_file() for name in _FILES):  # another process was quicker, and may be reading it
            self._enter(target)
            return
        with staged_folder(target) as staging:
            np.save(staging / "keys.npy", digests)
            np.save(staging / "vectors.npy", vectors)
            np.save(staging / "lengths.npy", embedded.lengths.astype(np.float32))
        self._enter(target)

    def missing(self, texts: Iterable[str], seen: set[bytes] | None = None) -> Iterator[tuple[bytes, str]]:
        """Each text that is neither here nor in `seen`, once, behind its key; `seen` grows by them."""
        seen = set() if seen is None else seen
        for text in texts:
            if (key := text_key(text)) not in self._where and key not in seen:
                seen.add(key)
                yield key, text

    def load(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of one text or more, `(len(texts), dim)`; KeyError for a text not filled."""
        vectors: np.ndarray | None = None
        for shard, positions, rows in self._grouped_by_shard(texts):
            stored = loaded(shard / "vectors.npy", shard)[rows]
            vectors = np.empty((len(texts), stored.shape[1]), self.dtype) if vectors is None else vectors
            vectors[positions] = stored
        assert vectors is not None
        return vectors

    def write(self, texts: Texts, target: Path, dim: int, lengths: Path | None = None) -> None:
        """Write the vectors of the texts as one `.npy` of `(len(texts), dim)`; KeyError for a text not filled.

        With `lengths` their norms before normalisation, float32 `(len(texts),)`, as another.
        """
        vectors = new_array(target, self.dtype, (len(texts), dim))
        norms = np.zeros(len(texts), dtype=np.float32)
        for shard, positions, rows in self._grouped_by_shard(texts):
            vectors[positions] = loaded(shard / "vectors.npy", shard)[rows]
            if lengths:
                norms[positions] = loaded(shard / "lengths.npy", shard)[rows]
        vectors.flush()
        if lengths:
            np.save(lengths, norms)

    def _grouped_by_shard(self, texts: Iterable[str]) -> Iterator[tuple[Path, list[int], list[int]]]:
        """Each shard with the positions of its texts, and their rows in it: its files are open one after the other."""
        pairs_by_shard: dict[Path, list[tuple[int, int]]] = {}
        for position, text in enumerate(texts):
            shard, row = self._where[text_key(text)]
            pairs_by_shard.setdefault(shard, []).append((position, row))
        for shard, pairs in pairs_by_shard.items():
            yield shard, [position for position, _ in pairs], [row for _, row in pairs]


def loaded(file: Path, entry: Path) -> np.ndarray:
    """An array of the cache, as a memory map; UserError, which names `entry`, if the file is cut or missing."""
    try:
        return np.asarray(np.load(file, mmap_mode="r"))
    except (ValueError, EOFError, FileNotFoundError) as error:
        raise UserError(
            f"{entry}: cannot be read ({error}); a power failure may have cut it: delete it, and it is made again"
        ) from None


def _work(text: str, longest: int) -> int:
    """What embedding a text takes, in bytes; of at most `longest` tokens, 0 = any number."""
    size = len(text.encode())
    return _OVERHEAD + (min(size, _TOKEN * longest) if longest else size)


def text_key(text: str) -> bytes:
    """The 32 bytes under which a text's vector is kept."""
    return sha256(text.encode("utf-8")).digest()


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
