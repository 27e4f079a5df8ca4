"""Query planner `table`: importances from the user's own term scores."""

import math
from collections.abc import Mapping

from slimtower.common.errors import UserError
from steps.core.texts import words


def table_importances(texts: list[str], scores: Mapping[str, float]) -> list[dict[str, float]]:
    """Importance of each distinct term of each text: its score divided by the sum over the text's terms.

    A term that the table lacks gets the table's largest score: a table holds the common words, and what it does not
    know is rare and therefore important. UserError when the table is empty.
    """
    if not scores:
        raise UserError("the table of term scores is empty; give at least one line `term<TAB>score`")
    largest = max(scores.values())
    return [shares({term: scores.get(term, largest) for term in words(text)}) for text in texts]


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights of at least 0 as shares of their sum; equal shares where all of them are 0."""
    total = math.fsum(weights.values())
    if total == 0:
        return dict.fromkeys(weights, 1 / max(len(weights), 1))
    return {term: weight / total for term, weight in weights.items()}
