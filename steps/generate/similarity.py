"""How far generated queries are from their sources, in words and in a judge's embedding space."""

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.core.cosines import cosines
from steps.core.texts import words
from steps.encoders.towers import encode

FUNCTION_WORDS = frozenset(
    words(
        "a an and are as at be been by can do does for from has have how if in into is it its may no not of on or that"
        " the their then there these this those to was were what when where which who whose why will with you your"
    )
)


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
