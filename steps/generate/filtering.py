"""What is dropped from the generated texts, and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from steps.core.texts import fold

REASONS = ("empty", "evaluation_query", "copy", "duplicate")


@dataclass(frozen=True)
class Filtered:
    """Positions of the texts kept, and the reason of each that was not."""

    selected: list[int]
    dropped: dict[int, str]

    def count(self, positions: Collection[int]) -> dict[str, int]:
        """Dropped texts among the positions, by reason."""
        counts = dict.fromkeys(REASONS, 0)
        for position in positions:
            if position in self.dropped:
                counts[self.dropped[position]] += 1
        return counts


def filter_texts(
    texts: Sequence[str], sources: Sequence[str], evaluation: Collection[str], existing: Collection[str]
) -> Filtered:
    """Keep what is new: not empty, no evaluation query, no copy of its source, not there already.

    `texts[i]` was written from `sources[i]`; `evaluation` and `existing` hold folded texts: dev and test queries, and
    training queries. All comparisons are on folded texts. The first of several equal texts stays.
    """
    seen = set(existing)
    selected: list[int] = []
    dropped: dict[int, str] = {}
    for position, (text, source) in enumerate(zip(texts, sources, strict=True)):
        key = fold(text)
        if not key:
            dropped[position] = "empty"
        elif key in evaluation:
            dropped[position] = "evaluation_query"
        elif key == fold(source):
            dropped[position] = "copy"
        elif key in seen:
            dropped[position] = "duplicate"
        else:
            seen.add(key)
            selected.append(position)
    return Filtered(selected, dropped)
