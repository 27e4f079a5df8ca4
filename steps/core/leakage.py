"""The one definition of a leak: a training text that equals a dev or test query after folding."""

from collections.abc import Iterable, Mapping
from typing import Any

from steps.core.texts import fold

EVALUATION_SPLITS = frozenset({"dev", "test"})


def evaluation_keys(queries: Iterable[Mapping[str, Any]], max_words: int = 0) -> dict[str, str]:
    """Folded text of every dev and test query -> its query_id.

    With `max_words`, also the folded first words of longer ones, which a text cut to that many words could equal.
    """
    keys: dict[str, str] = {}
    for row in queries:
        if row["split"] in EVALUATION_SPLITS:
            cut = " ".join(row["text"].split()[:max_words]) if max_words else row["text"]
            for text in (row["text"], cut):
                if key := fold(text):
                    keys[key] = row["query_id"]
    return keys
