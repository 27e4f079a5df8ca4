"""Query planner `table`: importances from the user's own term scores."""

import math
from collections.abc import Mapping
from pathlib import Path

from steps.core.errors import UserError
from steps.core.texts import words


def read_term_scores(path: Path) -> dict[str, float]:
    """Read a table of lines `term<TAB>score`, UTF-8, without a header.

    A term is one word as queries are cut into words: lower case, letters and digits. UserError, naming the line, for
    any other term, a term said twice, and a score that is no number or below 0; and for a missing or empty file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a UTF-8 file of lines `term<TAB>score`") from None
    scores: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        term, score = _parse(line, f"{path}:{number}")
        if term in scores:
            raise UserError(f"{path}:{number}: the term {term!r} stands here for the second time; keep one of the two")
        scores[term] = score
    if not scores:
        raise UserError(f"{path}: holds no term; give lines `term<TAB>score`")
    return scores


def _parse(line: str, where: str) -> tuple[str, float]:
    term, tab, given = line.partition("\t")
    if not tab:
        raise UserError(f"{where}: {line[:80]!r} has no tab; write `term<TAB>score`")
    if words(term) != [term]:
        raise UserError(f"{where}: {term!r} is not one lower-case word of letters and digits, so no query can hold it")
    try:
        score = float(given)
    except ValueError:
        score = math.nan
    if not (math.isfinite(score) and score >= 0):
        raise UserError(f"{where}: the score {given!r} of {term!r} is not a number of at least 0; mend or remove it")
    return term, score


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
