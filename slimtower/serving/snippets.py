"""The part of a document that a hit shows: from the sentence that has most of the query's words."""

import re
from bisect import bisect_right
from functools import lru_cache

_SCANNED = 2000  # characters of a content
_QUERY_WORDS = 30
_WORD = re.compile(r"\w{2,40}")
_ENDING = re.compile(r"(?<=\w{3})(?:ing|es|ed|s|e)$")  # page.html marks words by the same rule
_SENTENCE = re.compile(r"[.!?]\s+|\n+")
_COMMON = frozenset(
    re.findall(
        r"\w+", "a an and are as at be by can do for from how i in into is it my of on or that the this to what with"
    )
)


def snippet(content: str, query: str, length: int) -> str:
    """At most `length` characters, in whole words: from the beginning if no sentence has a word of the query."""
    scanned = content[:_SCANNED]
    start = _best_sentence(scanned, query)
    room = length - 2 if start else length
    text = " ".join(scanned[start:].split())
    if len(text) > room:
        text = f"{text[: room - 1].rpartition(' ')[0] or text[: room - 2]} …"
    return f"… {text}" if start else text


def _best_sentence(text: str, query: str) -> int:
    """Where the sentence begins that has most of the query's words; the first of several."""
    pattern = _pattern(query)
    if pattern is None:
        return 0
    starts = [0, *(gap.end() for gap in _SENTENCE.finditer(text))]
    words: dict[int, set[str]] = {}
    for match in pattern.finditer(text):
        words.setdefault(bisect_right(starts, match.start()) - 1, set()).add(match[1].lower())
    best = max(words, key=lambda sentence: (len(words[sentence]), -sentence), default=0)
    return starts[best]


@lru_cache(maxsize=256)
def _pattern(query: str) -> re.Pattern[str] | None:
    """Finds the words of a query, with whatever of the usual endings; None if it has none that tells."""
    words = dict.fromkeys(word for word in _WORD.findall(query.lower()) if word not in _COMMON)
    stems = dict.fromkeys(_ENDING.sub("", word) for word in words)
    if not stems:
        return None
    return re.compile(rf"\b({'|'.join(map(re.escape, list(stems)[:_QUERY_WORDS]))})(?:ing|es|ed|s|e)?\b", re.IGNORECASE)
