"""Which generated texts are kept, and how similar they are to what they were written from."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.core.cosines import cosines
from steps.core.texts import fold, words
from steps.encoders.towers import encode

REASONS = ("empty", "evaluation_query", "copy", "duplicate")
FUNCTION_WORDS = frozenset(
    words(
        "a an and are as at be been by can do does for from has have how if in into is it its may no not of on or that"
        " the their then there these this those to was were what when where which who whose why will with you your"
    )
)


@dataclass(frozen=True)
class Filtered:
    """Positions of the texts kept, and the reason of each that was not."""

    selected: list[int]
    dropped: dict[int, str]

    def count(self, positions: Collection[int]) -> dict[str, int]:
        """Dropped texts among the positions, by reason."""
        counts = Counter(self.dropped[position] for position in positions if position in self.dropped)
        return {reason: counts[reason] for reason in REASONS}


def filter_texts(
    texts: Sequence[str], sources: Sequence[str], evaluation: Collection[str], existing: Collection[str]
) -> Filtered:
    """Keep what is new: not empty, no evaluation query, no copy of its source, not there already.

    `texts[i]` was written from `sources[i]`; `evaluation` (dev and test queries) and `existing` hold folded texts. The
    first of several equal texts stays.
    """
    seen = set(existing)
    selected: list[int] = []
    dropped: dict[int, str] = {}
    for position, (text, source) in enumerate(zip(texts, sources, strict=True)):
        key = fold(text)
        fails = (not key, key in evaluation, key == fold(source), key in seen)
        if any(fails):
            dropped[position] = REASONS[fails.index(True)]
        else:
            seen.add(key)
            selected.append(position)
    return Filtered(selected, dropped)


def content_words(text: str) -> set[str]:
    """Words of a text without function words."""
    return set(words(text)) - FUNCTION_WORDS


def content_overlap(first: str, second: str) -> float:
    """Jaccard overlap of the content words of two texts; 1 where neither has any."""
    first_words, second_words = content_words(first), content_words(second)
    return len(first_words & second_words) / len(first_words | second_words) if first_words | second_words else 1.0


def source_cosines(
    judge: SentenceTransformer, sources: Sequence[str], variants: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine of each variant to its own source, and to the next variant's source as the control, each `(n,)`."""
    source, variant = (encode(judge, list(texts), "query") for texts in (sources, variants))
    return cosines(source, variant), cosines(np.roll(source, 1, axis=0), variant)
