"""Which texts are kept: each once, none empty, none of them an evaluation query."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from slimtower.common.files import sha256_text
from steps.core.tables import Part
from steps.core.texts import fold, words


class Item(NamedTuple):
    """A text, the id of what it came from, the query that it is a perturbation of, and the pieces it is joined of."""

    text: str
    source_id: str
    query: str = ""
    pieces: Sequence[str] = ()


class Collected:
    """The texts kept so far as rows of the table, and of each part how many were kept or left out for which reason."""

    def __init__(self, forbidden: Mapping[str, str], max_words: int, seed: int, *, to_the_letter: bool) -> None:
        """`forbidden`: folded evaluation queries; `to_the_letter`: texts that differ in case alone may both be kept."""
        self.forbidden, self.max_words, self.seed = forbidden, max_words, seed
        self.seen = _Seen(to_the_letter)
        self.rows: list[dict[str, str]] = []
        self.counts: dict[str, Counter[str]] = {}

    def take(self, part: Part, read_items: Callable[[], Iterable[Item]], limit: int) -> array:
        """Add texts of a part, a sample of `limit` if there are more (0 = all); return the positions of all new ones.

        `read_items` gives the same texts in the same order at every call: a large part is not held but read again.
        """
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        positions = array("q")
        for position, item in enumerate(read_items()):
            if (reason := _reason(item, self.forbidden, self.seen, self.max_words)) == "kept":
                positions.append(position)
            tally[reason] += 1
        chosen = set(_sample(positions, limit, self.seed))
        for position, item in enumerate(read_items() if chosen else ()):
            if position in chosen:
                text = first_words(item.text, self.max_words)
                self.rows.append(
                    {
                        "text_sha": sha256_text(text),
                        "text": text,
                        "part": part,
                        "role": "query",
                        "source_id": item.source_id,
                    }
                )
        if undrawn := len(positions) - len(chosen):
            tally["not_drawn"] = undrawn
        tally["kept"] = len(chosen)
        self.counts.setdefault(part, Counter()).update(tally)
        return positions


def _reason(item: Item, forbidden: Mapping[str, str], seen: "_Seen", max_words: int) -> str:
    """`kept`, and then the text is marked as seen, or why it is left out."""
    cut = first_words(item.text, max_words)
    key = fold(cut)
    if not key or not words(cut):
        return "empty"
    query = first_words(item.query, max_words)
    if key in forbidden or any(fold(text) in forbidden for text in (item.text, item.query, query, *item.pieces)):
        return "evaluation_query"
    if query:
        return "kept" if cut != query and seen.adds_text(cut) else "repeated"
    return "kept" if seen.adds(key, cut) else "repeated"


class _Seen:
    """Which texts there were."""

    def __init__(self, to_the_letter: bool) -> None:
        """Keep the texts as they are too, beside their folded keys, or the keys alone."""
        self.to_the_letter = to_the_letter
        self.keys: set[int] = set()
        self.texts: set[int] = set()

    def adds(self, key: str, text: str) -> bool:
        """Whether neither the folded key nor the text was there; both are from now on."""
        mark = _mark(key)
        if mark in self.keys or (self.to_the_letter and not self.adds_text(text)):
            return False
        self.keys.add(mark)
        return True

    def adds_text(self, text: str) -> bool:
        """Whether the text was not there to the letter; it is from now on, without its key."""
        mark = _mark(text)
        if mark in self.texts:
            return False
        self.texts.add(mark)
        return True


def first_words(text: str, limit: int) -> str:
    """The first `limit` words, white space collapsed."""
    return " ".join(text.split()[:limit])


def _mark(key: str) -> int:
    """64 bits that tell texts apart, in a fifth of the memory."""
    return int.from_bytes(blake2b(key.encode("utf-8"), digest_size=8).digest(), "big")


def _sample(positions: Sequence[int], limit: int, seed: int) -> list[int]:
    """At most `limit` of the positions (0 = all), chosen with the seed."""
    if not limit or len(positions) <= limit:
        return list(positions)
    return [positions[index] for index in np.random.default_rng(seed).choice(len(positions), size=limit, replace=False)]
