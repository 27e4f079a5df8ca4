"""Text spans of documents, as long as queries."""

from collections.abc import Callable, Iterator
from random import Random

import regex

Length = Callable[[Random], int]  # of a span, in words
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[^\s{_UNSPACED}]+")
_LONG_SHARE = 0.2  # of the spans of mixed lengths


def mixed_length(queries: Length) -> Length:
    """As `queries` says, and now and then as many words as a sentence has."""
    return lambda rng: rng.randint(13, 30) if rng.random() < _LONG_SHARE else queries(rng)


def words_of(text: str) -> list[str]:
    """The words of a text as they are written; scripts without spaces between words give their characters."""
    return _WORD.findall(" ".join(text.split()))


def spans(text: str, rng: Random, count: int, length: Length, max_words: int, joined: float = 0.0) -> Iterator[str]:
    """`count` windows of consecutive words, each at a random place, of a random length up to `max_words`.

    With the chance `joined` it is two windows of half the length. None is longer than the text, and a text without a
    word gives empty ones.
    """
    text = " ".join(text.split())
    found = [word.span() for word in _WORD.finditer(text)]
    for _ in range(count):
        wanted = min(length(rng), max_words, len(found))
        if joined and wanted > 3 and rng.random() < joined:
            yield " ".join(_window(text, found, rng, half) for half in (wanted // 2, wanted - wanted // 2))
        else:
            yield _window(text, found, rng, wanted)


def _window(text: str, found: list[tuple[int, int]], rng: Random, length: int) -> str:
    """`length` of the words `found` in the text, with what stands between them."""
    start = rng.randint(0, len(found) - length)
    return text[found[start][0] : found[start + length - 1][1]] if length else ""
