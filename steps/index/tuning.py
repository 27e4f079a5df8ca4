"""The cheapest search setting of an index that finds what the exact index finds."""

from dataclasses import dataclass

import faiss
import numpy as np

from steps.core.index_files import apply_settings, parts
from steps.index.build import layers_of
from steps.index.inverted_lists import inverted_lists

K = 10
_PROBES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_EF = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_FACTORS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]

Settings = dict[str, int]


@dataclass(frozen=True)
class Tuned:
    """Settings by faiss' names, the recall@10 that they reach, and whether that meets the target."""

    settings: Settings
    recall: float
    met: bool


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    """Mean share of the exact top k, row numbers `(n, k)`, that was found; -1 stands for no hit."""
    shares = [len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]
    return float(np.mean(shares))


def tune(index: faiss.Index, queries: np.ndarray, wanted: np.ndarray, target: float) -> Tuned:
    """Choose and apply the settings that read the fewest bytes a search among those that reach `target` recall.

    Args: queries: float32 `(n, width)`; wanted: the exact top k of each, row numbers `(n, k)`. When no setting reaches
    the target, the one that finds most is chosen, the cheapest of equals. Recall rises with either setting, so their
    grid is walked along the edge of the target instead of being searched whole.
    """
    first, factors = _ladders(index)
    tried: dict[tuple[int, int], float] = {}
    row, column = 0, len(factors) - 1
    while row < len(first) and column >= 0:
        settings = first[row] | factors[column]
        apply_settings(index, settings)
        reached = recall(index.search(queries, wanted.shape[1])[1], wanted)
        tried[row, column] = reached
        if reached >= target:
            column -= 1
        else:
            row += 1
    costs = {place: _cost(index, first, factors, place) for place in tried}
    met = [place for place in tried if tried[place] >= target]
    best = min(met, key=lambda place: costs[place]) if met else min(tried, key=lambda p: (-tried[p], costs[p]))
    settings = first[best[0]] | factors[best[1]]
    apply_settings(index, settings)
    return Tuned(settings, tried[best], bool(met))


def _ladders(index: faiss.Index) -> tuple[list[Settings], list[Settings]]:
    """Rising values of what the searching layer can be told (lists or graph nodes visited), and of the re-scoring."""
    space = faiss.ParameterSpace()
    space.initialize(parts(index)[0])
    known = {space.parameter_ranges.at(place).name for place in range(space.parameter_ranges.size())}
    first: list[Settings] = [{}]
    if "nprobe" in known:
        lists = inverted_lists(parts(index)[0]).nlist
        first = [{"nprobe": value} for value in [*(v for v in _PROBES if v < lists), lists]]
    elif "efSearch" in known:
        first = [{"efSearch": value} for value in _EF]
    if "k_factor_rf" not in known:
        return first, [{}]
    enough = -(-index.ntotal // K)  # re-scores everything
    return first, [{"k_factor_rf": value} for value in [*(v for v in _FACTORS if v < enough), min(enough, 128)]]


def _cost(index: faiss.Index, first: list[Settings], factors: list[Settings], place: tuple[int, int]) -> float:
    """Bytes that one search for ten hits reads, roughly: the same on every machine, unlike a time."""
    layers = layers_of(parts(index)[0])
    settings: Settings = first[place[0]] | factors[place[1]]
    ivf = inverted_lists(layers.base)
    if "efSearch" in settings:
        read = 32.0 * settings["efSearch"] * 4 * index.d
    elif ivf is not None:
        read = index.ntotal * min(1.0, settings["nprobe"] / ivf.nlist) * ivf.code_size
    else:
        read = float(index.ntotal * _code_size(layers.base))
    if layers.refine is not None:
        read += K * settings["k_factor_rf"] * _code_size(layers.refine)
    return read


def _code_size(index: faiss.Index) -> int:
    """Bytes of one vector in an index that scans codes; float32 where faiss does not tell."""
    try:
        return int(index.sa_code_size())
    except RuntimeError:
        return 4 * index.d
