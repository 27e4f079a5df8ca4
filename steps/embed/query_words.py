"""What training queries are made of: their words by frequency, and their lengths."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from steps.core.texts import words_of
from steps.embed.spans import Length


@dataclass(frozen=True)
class QueryWords:
    """Distinct words, how often these and all before them occur, and the sorted lengths of the queries in words."""

    words: list[str]
    occurrences: list[int]
    lengths: array

    def length(self, rng: Random) -> int:
        """The length of a random query, in words: by quantile, so that few more queries change few draws.

        Needs one query at least.
        """
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
