"""Text spans of documents, as long as queries."""

from collections.abc import Callable, Iterator
from random import Random

from steps.core.texts import word_places

Length = Callable[[Random], int]  # of a span, in words
_LONG_SHARE = 0.2  # of the spans of mixed lengths


def mixed_length(queries: Length) -> Length:
    """As `queries` says, and now and then as many words as a sentence has."""
    return lambda rng: rng.randint(13, 30) if rng.random() < _LONG_SHARE else queries(rng)


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
    """`length` of the words `words` in the text, with what stands between them."""
    return text[words[start][0] : words[start + length - 1][1]] if length else ""
