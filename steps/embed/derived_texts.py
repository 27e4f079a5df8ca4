"""Texts made of others: spans of documents, random words of queries, and queries as people mistype them."""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import hypot
from random import Random
from string import capwords

from steps.core.texts import word_places, words_of

Length = Callable[[Random], int]  # of a span, in words
_LONG_SHARE, _PASSAGE_SHARE = 0.2, 0.05  # of the spans of mixed lengths; passages are some of the long ones
_LETTERS = re.compile(r"[^\W\d_]{4,}")  # shorter words are rarely mistyped, and seldom the same word afterwards
_EDITS = ("swap", "drop", "double", "neighbour")
_ROWS = (("qwertyuiop", 0.0), ("asdfghjkl", 0.25), ("zxcvbnm", 0.75))  # QWERTY, each row with its shift in keys
_KEYS = {key: (column + shift, row) for row, (keys, shift) in enumerate(_ROWS) for column, key in enumerate(keys)}
_NEIGHBOURS = {
    key: [neighbour for neighbour, (x, y) in _KEYS.items() if neighbour != key and hypot(x - column, y - row) < 1.3]
    for key, (column, row) in _KEYS.items()
}


def mixed_length(queries: Length) -> Length:
    """As `queries` says, now and then as many words as a sentence has, and seldom as many as a passage."""

    def length(rng: Random) -> int:
        drawn = rng.random()
        if drawn < _PASSAGE_SHARE:
            return rng.randint(31, 96)
        return rng.randint(13, 30) if drawn < _LONG_SHARE else queries(rng)

    return length


def spans(
    text: str, rng: Random, count: int, length: Length, max_words: int, joined: float = 0.0
) -> Iterator[list[str]]:
    """`count` spans of a random length up to `max_words`: one window of consecutive words each, at a random place.

    With the chance `joined` it is two windows of half the length, which do not overlap. None is longer than the text,
    and a text without a word gives empty ones.
    """
    text = " ".join(text.split())
    words = word_places(text)
    for _ in range(count):
        span_length = min(length(rng), max_words, len(words))
        free = len(words) - span_length
        start = rng.randint(0, free)
        if joined and span_length > 3 and rng.random() < joined:
            half, second = span_length // 2, rng.randint(start, free)
            yield [_window(text, words, start, half), _window(text, words, second + half, span_length - half)]
        else:
            yield [_window(text, words, start, span_length)]


def _window(text: str, words: list[tuple[int, int]], start: int, length: int) -> str:
    return text[words[start][0] : words[start + length - 1][1]] if length else ""


@dataclass(frozen=True)
class QueryWords:
    """Distinct words, how often these and all before them occur, and the sorted lengths of the queries in words."""

    words: list[str]
    occurrences: list[int]
    lengths: array

    def length(self, rng: Random) -> int:
        """Length of a random query in words, drawn by quantile, so that few more queries change few draws."""
        return self.lengths[int(rng.random() * len(self.lengths))]

    def length_or(self, shortest: int, longest: int) -> Length:
        """The length of a random query, or `shortest` to `longest` words where there is no query."""
        return self.length if self.lengths else lambda rng: rng.randint(shortest, longest)

    def random_query(self, rng: Random) -> str:
        """As many words as a random query has, each drawn by its frequency. Needs one query at least."""
        return " ".join(rng.choices(self.words, cum_weights=self.occurrences, k=self.length(rng)))


def query_words(texts: Iterable[str]) -> QueryWords:
    """Count the words of queries as they are written; a query without a word counts for nothing."""
    counted: Counter[str] = Counter()
    lengths = array("i")
    for text in texts:
        if text_words := words_of(text):
            counted.update(text_words)
            lengths.append(len(text_words))
    return QueryWords(list(counted), list(accumulate(counted.values())), array("i", sorted(lengths)))


def perturbed(text: str, rng: Random, case_share: float, *, uncased: bool = False) -> str:
    """The text with one or two typos or, with the chance `case_share`, in UPPER, Title or lower case.

    A typo swaps two letters of a word of four or more, drops or doubles one, or hits a key beside it (QWERTY). If only
    the other change is possible the text gets that one; if neither is, it stays. `uncased`: typos alone change it.
    """
    text = " ".join(text.split())
    cases = [] if uncased else [case for case in (text.upper(), capwords(text), text.lower()) if case != text]
    in_case = rng.random() < case_share
    if cases and (in_case or not _LETTERS.search(text)):
        return rng.choice(cases)
    return _mistyped(text, rng) if _LETTERS.search(text) else text


def _mistyped(text: str, rng: Random) -> str:
    edits = rng.randint(1, 2)
    changed = text
    while changed == text:
        for _ in range(edits):
            if words := list(_LETTERS.finditer(changed)):  # the first edit may have left three letters
                word = rng.choice(words)
                changed = changed[: word.start()] + _edited(word[0], rng) + changed[word.end() :]
    return changed


def _edited(word: str, rng: Random) -> str:
    """One edit; a swap of equal letters and a letter that is not on the keyboard leave the word as it is."""
    kind = rng.choice(_EDITS)
    if kind == "swap":
        at = rng.randrange(len(word) - 1)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    at = rng.randrange(len(word))
    letter = word[at]
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    if kind == "double":
        return word[:at] + 2 * letter + word[at + 1 :]
    near = _NEIGHBOURS.get(letter.lower(), [letter])
    hit = rng.choice(near)
    return word[:at] + (hit.upper() if letter.isupper() else hit) + word[at + 1 :]
