"""How far two systems find the same: rank-biased overlap, and the overlap of their first ten hits."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from steps.evaluate.figures.base import NEIGHBOURS, Figure, Part, RenderContext, model_table, overlaps
from steps.evaluate.formatting import Block, percent
from steps.evaluate.scoring import read_hits

PERSISTENCE = 0.9  # p: how likely a reader goes on to the next hit; the first ten then weigh 86 %


class AgreementWithTheTeacher(Figure):
    """`agreement.<set>.<student>.rbo, overlap` of metrics.json, over test queries.

    Rank-biased overlap (p = 0.9) with the teacher's hits, to rank 100, and share of its first ten among the student's.
    """

    title = "Agreement with the teacher's hits"
    part: ClassVar[Part] = "tests"

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        heads = ["student", "same top 10", "rank-biased overlap"]
        yield model_table(heads, value, lambda same: [percent(same["overlap"]), f"{same['rbo']:.3f}"])
        yield (
            "*Same top 10*: the share of the teacher's first ten hits that the student has among its own. *Rank-biased"
            " overlap* (p = 0.9) compares both rankings from the top; it is 1 if they are equal."
            + " Students are encoders alone."
            * context.fused
        )


def rank_biased_overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Extrapolated rank-biased overlap of two rankings, 0 to 1, to the depth of the shorter one.

    RBO_ext = X_k / k p^k + (1 - p) / p * sum over d of X_d / d p^d, with X_d the size of the overlap of the first d
    (Webber, Moffat and Zobel, "A similarity measure for indefinite rankings", 2010, Eq. 30). 1 for two empty rankings.
    """
    depth = min(len(first), len(second))
    if not depth:
        return float(len(first) == len(second))
    seen: tuple[set[str], set[str]] = (set(), set())
    common, total = 0, 0.0
    for at in range(depth):
        a, b = first[at], second[at]
        common += 1 if a == b else (a in seen[1]) + (b in seen[0])
        seen[0].add(a)
        seen[1].add(b)
        total += common / (at + 1) * PERSISTENCE ** (at + 1)
    return common / depth * PERSISTENCE**depth + (1 - PERSISTENCE) / PERSISTENCE * total


def agreement(runs: Iterable[Path], reference: str, systems: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """`[data set][system]` -> mean `rbo` and `overlap` of the first ten with the reference, from TREC run files."""
    hits: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(dict)
    for path in sorted(runs):
        dataset, _, system = path.name.removesuffix(".run").partition(".")
        if system in {reference, *systems}:
            hits[dataset][system] = read_hits(path)
    return {
        dataset: {name: _means(by_system[reference], by_system[name]) for name in systems if name in by_system}
        for dataset, by_system in hits.items()
    }


def _means(reference: Mapping[str, Sequence[str]], system: Mapping[str, Sequence[str]]) -> dict[str, float]:
    pairs = [(expected, system.get(query, [])) for query, expected in reference.items()]
    same = overlaps([expected[:NEIGHBOURS] for expected, _ in pairs], [hits[:NEIGHBOURS] for _, hits in pairs])
    return {
        "rbo": float(np.mean([rank_biased_overlap(expected, hits) for expected, hits in pairs])),
        "overlap": float(same.mean()),
    }
