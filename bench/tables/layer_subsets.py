"""The 13 layer subsets of query-encoder alignment (App. A.1), scaled to a teacher of any depth."""

from collections.abc import Sequence

from slimtower.common.errors import UserError

PAPER_DEPTH = 12
PAPER = (
    [1, 4, 7, 10], [0, 1, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
    [0, 10], [0, 11], [1, 10], [1, 11],
    [0], [1], [10], [11],
)  # fmt: skip


def scaled(subset: Sequence[int], depth: int, of: int = PAPER_DEPTH) -> list[int]:
    """The layers of a teacher with `depth` layers that answer to `subset` of one with `of`, counted from 0.

    A block of neighbours stays the first, the last or the middle one. Otherwise the two layers at either end keep their
    distance from it, and layers between are spread evenly. UserError where that gives a layer twice.
    """
    count = len(subset)
    if count > 2 and list(subset) == list(range(subset[0], subset[0] + count)):
        first = {0: 0, of - count: depth - count}.get(subset[0], (depth - count) // 2)
        found = list(range(first, first + count))
    else:
        ends = {layer: layer if layer < 2 else depth - of + layer for layer in subset if layer < 2 or layer >= of - 2}
        low, high = min(subset), max(subset)
        found = []
        for layer in subset:
            if layer not in ends:
                share = (layer - low) / (high - low)
                ends[layer] = round(ends[low] + share * (ends[high] - ends[low]))
            found.append(ends[layer])
    if len(set(found)) < count or not all(0 <= layer < depth for layer in found):
        raise UserError(f"layer subset {list(subset)}: a teacher of {depth} layers has no such; leave the row out")
    return found
