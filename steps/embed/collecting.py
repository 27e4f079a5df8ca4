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

    def take(self, part: Part, read: Callable[[], Iterable[Item]], most: int) -> array:
        """Add texts of a part, a sample of `most` where there are more (0 = all); returns the places of them all.

        `read` gives the same texts in the same order at every call: those of a large part are not held, but read again.
        """
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        places = array("q")
        for place, item in enumerate(read()):
            if (reason := _reason(item, self.forbidden, self.seen, self.max_words)) == "kept":
                places.append(place)
            tally[reason] += 1
        chosen = set(_sample(places, most, self.seed))
        for place, item in enumerate(read() if chosen else ()):
            if place in chosen:
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
        if undrawn := len(places) - len(chosen):
            tally["not_drawn"] = undrawn
        tally["kept"] = len(chosen)
        self.counts.setdefault(part, Counter()).update(tally)
        return places


def _reason(item: Item, forbidden: Mapping[str, str], seen: "_Seen", max_words: int) -> str:
    """`kept`, and then the text is marked as seen, or why it is left out."""
    text = first_words(item.text, max_words)
    key = fold(text)
    if not key or not words(text):
        return "empty"
    query = first_words(item.query, max_words)
    if key in forbidden or any(fold(other) in forbidden for other in (item.text, item.query, query, *item.pieces)):
        return "evaluation_query"
    if query:
        return "kept" if text != query and seen.adds_text(text) else "repeated"
    return "kept" if seen.adds(key, text) else "repeated"


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


def first_words(text: str, most: int) -> str:
    """The first `most` words, white space collapsed."""
    return " ".join(text.split()[:most])


def _mark(key: str) -> int:
    """64 bits that tell texts apart, in a fifth of the memory."""
    return int.from_bytes(blake2b(key.encode("utf-8"), digest_size=8).digest(), "big")


def _sample(places: Sequence[int], most: int, seed: int) -> list[int]:
    """At most `most` of the places (0 = all), chosen with the seed."""
    if not most or len(places) <= most:
        return list(places)
    return [places[row] for row in np.random.default_rng(seed).choice(len(places), size=most, replace=False)]
