"""Texts tokenised once, and batches of them that pad little."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_CHUNK = 20_000


@dataclass(frozen=True)
class Tokens:
    """Token ids of many texts, end to end: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Number of tokens of each row, `(len(rows),)`."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def row(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]


def tokenize(texts: list[str], tokenizer: Any, max_length: int, *, special: bool) -> Tokens:
    """Tokenise with a fast tokenizer, cut to `max_length` tokens, `special` tokens included when asked for.

    A text without any token gets the unknown token, so that every text has an embedding.
    """
    parts, lengths = [], [0]
    for start in range(0, len(texts), _CHUNK):
        encoded = tokenizer(
            texts[start : start + _CHUNK],
            add_special_tokens=special,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        for ids in encoded:
            ids = ids or [tokenizer.unk_token_id]
            parts.append(np.asarray(ids, dtype=np.int32))
            lengths.append(len(ids))
    return Tokens(np.concatenate(parts), np.cumsum(lengths))


def length_batches(lengths: np.ndarray, batch_size: int, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Positions `0..len(lengths)-1` in batches of like length, batches in seeded order.

    Sorting happens within windows of 64 batches: little padding, and still another mix every epoch.
    """
    rng = np.random.default_rng(seed)
    window = 64 * batch_size
    batches = []
    for start in range(0, len(lengths), window):
        order = start + np.argsort(lengths[start : start + window], kind="stable")
        batches += [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    for number in rng.permutation(len(batches)):
        yield batches[number]
