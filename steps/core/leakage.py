"""The one definition of a leak: a training text that equals a dev or test query after folding; and the one check."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slimtower.common.errors import UserError
from steps.core.texts import first_words, fold

EVALUATION_SPLITS = frozenset({"dev", "test"})
EXAMPLES = 3


class Leak(NamedTuple):
    """A training text, the file that it stands in, and the id of the evaluation query that it equals."""

    where: str
    text: str
    query_id: str


def evaluation_keys(queries: Iterable[Mapping[str, Any]], max_words: int = 0) -> dict[str, str]:
    """Folded text of every dev and test query -> its query_id; `queries` are rows with query_id, text and split.

    With `max_words`, also the folded first words of longer ones, which a text cut to that many words could equal.
    """
    keys: dict[str, str] = {}
    for row in queries:
        if row["split"] in EVALUATION_SPLITS:
            cut = first_words(row["text"], max_words) if max_words else row["text"]
            for text in (row["text"], cut):
                if key := fold(text):
                    keys[key] = row["query_id"]
    return keys


def check_leaks(texts: Iterable[tuple[str, str]], keys: Mapping[str, str], remedy: str) -> int:
    """How many texts, each with the file that it stands in, were compared with `keys`, which are evaluation_keys.

    UserError with the count and the first few when one of them is an evaluation query; `remedy` says what to do.
    """
    examples: list[Leak] = []
    compared = leaks = 0
    for where, text in texts:
        compared += 1
        query_id = keys.get(fold(text))
        if query_id is not None:
            leaks += 1
            if len(examples) < EXAMPLES:
                examples.append(Leak(where, text, query_id))
    refuse_leaks(examples, leaks, compared, remedy)
    return compared


def refuse_leaks(examples: Sequence[Leak], leaks: int, compared: int, remedy: str) -> None:
    """UserError when there are examples: `leaks` of the `compared` texts are evaluation queries."""
    if examples:
        listed = "; ".join(f"{leak.where}: {leak.text[:80]!r} is {leak.query_id}" for leak in examples)
        raise UserError(
            f"leak: {leaks:,} of {compared:,} training texts equal a dev or test query ({listed}); {remedy}"
        )
