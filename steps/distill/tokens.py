"""Texts tokenised once, and batches of them that pad little."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

_CHUNK = 20_000
_SORTED = 8192  # texts


@dataclass(frozen=True)
class Tokens:
    """Token ids of many texts, end to end: text i is `ids[offsets[i]:offsets[i + 1]]`.

    `sizes[i]` is what a mean over its ids divides by; None = how many they are.
    """

    ids: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """What a checkpoint's key has of them."""
        return {f"{name}.ids": self.ids, f"{name}.offsets": self.offsets}

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Number of tokens of each row, `(len(rows),)`."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def opened(self, pieces: "Tokens") -> "Tokens":
        """The texts with every token t replaced by `pieces.row(t)`."""
        counts = np.diff(pieces.offsets)[self.ids]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        ids = pieces.ids[np.repeat(pieces.offsets[self.ids], counts) + within]
        return Tokens(ids, np.concatenate([[0], ends])[self.offsets], np.diff(self.offsets))

    def row(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]


def tokenize(texts: list[str], tokenizer: Any, max_length: int, *, special: bool) -> Tokens:
    """Tokenise, cut to `max_length`, `special` tokens included; a text without any token gets the unknown token."""
    tokenizer = Tokenizer.from_str(getattr(tokenizer, "_tokenizer", tokenizer).to_str())  # what is set below stays here
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
    chunks, lengths = [], [0]
    for start in range(0, len(texts), _CHUNK):
        for encoded in tokenizer.encode_batch_fast(texts[start : start + _CHUNK], add_special_tokens=special):
            ids = encoded.ids or [unknown or 0]
            chunks.append(np.asarray(ids, dtype=np.int32))
            lengths.append(len(ids))
    ids = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int32)
    return Tokens(ids, np.cumsum(lengths))


def length_batches(lengths: np.ndarray, batch_size: int, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Positions in batches of like length, sorted within windows of 8,192 texts or a batch, in seeded order."""
    rng = np.random.default_rng(seed)
    window = max(1, _SORTED // batch_size) * batch_size
    batches = []
    for start in range(0, len(lengths), window):
        order = start + np.argsort(lengths[start : start + window], kind="stable")
        batches += [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    for number in rng.permutation(len(batches)):
        yield batches[number]
