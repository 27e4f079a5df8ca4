"""Text spans of documents, cut to the length of queries."""

from collections.abc import Iterator
from random import Random

from steps.embed.query_words import QueryWords

_LENGTHS = (4, 12)  # words of a span where no training query says how long queries are


def spans(text: str, rng: Random, count: int, queries: QueryWords, max_words: int) -> Iterator[str]:
    """`count` windows of consecutive words, each at a random place and as long as a random training query.

    At most `max_words` words, and no more than the text has. A text without a word gives empty spans.
    """
    found = text.split()
    for _ in range(count):
        length = queries.length(rng) if queries.lengths else rng.randint(*_LENGTHS)
        length = min(length, max_words, len(found))
        start = rng.randint(0, len(found) - length)
        yield " ".join(found[start : start + length])
