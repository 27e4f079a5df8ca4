"""What the page and a terminal show of a search: queries to try, the part of a document that fits, and times."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slimtower.serving.release import Release

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
ANSWERS: dict[str, frozenset[str]] = {
    "draw a histogram": frozenset({"matplotlib.axes.Axes.hist", "pandas.plotting.hist_frame"}),
    "read a csv file into a dataframe": frozenset({"pandas.io.parsers.readers.read_csv"}),
    "resize an image": frozenset(
        {"PIL.Image.Image.resize", *(f"PIL.ImageOps.{name}" for name in ("contain", "cover", "fit", "pad"))}
    ),
}
"""Query -> documents that answer it, without their data set's name."""
EXAMPLE = next(iter(ANSWERS))
_FIRST = 3  # hits among which the answer must be
CALLS = 20


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


def answered_examples(release: "Release", dataset: str) -> list[str]:
    """Those of the queries that a release answers: a right document is among its first three hits."""
    ids = set(release.documents(dataset).ids)
    return [
        query
        for query, answers in ANSWERS.items()
        if (right := {f"{dataset}/{name}" for name in answers} & ids)
        and any(hit.id in right for hit in release.query(query, _FIRST, dataset))
    ]


class Times(NamedTuple):
    """Milliseconds of one call."""

    encode: float
    search: float


class Medians(NamedTuple):
    """Medians over `calls` calls in milliseconds: from text to hits, and of the encoding within that."""

    calls: int
    total: float
    encode: float


def medians(times: Iterable[Times]) -> Medians:
    """The medians of some calls, of which there is at least one."""
    calls = list(times)
    return Medians(len(calls), median(call.encode + call.search for call in calls), median(c.encode for c in calls))


def milliseconds(value: float) -> str:
    """With two significant digits, and no more than a person reads: 13, 2.4, 0.31, 0.012."""
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
