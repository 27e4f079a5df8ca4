"""How far the approximate index must be searched until a tower loses at most 1 % against its own exact search."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import faiss
import numpy as np
import torch

from slimtower.serving.index_files import apply_settings, shards_of
from slimtower.serving.release import Release
from steps.core.judged import JudgedSet, other_hits, tied_hits
from steps.core.measures import ndcg_at_10
from steps.evaluate.figures.base import EvaluatedTower, Figure, Part, RenderContext, model_table
from steps.evaluate.figures.perturbed import drawn_rows
from steps.evaluate.formatting import Block, percent

ALLOWED = 0.01  # share of the exact search's nDCG@10
_STEPS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_LEAST_EF = 16  # below, faiss keeps about as many candidates as it is asked for hits
_K = 10
_QUERIES = 500  # of a data set, drawn with the seed


class SearchEffort(Figure):
    """`effort.<set>.<model>` of metrics.json: `knob` is faiss' name for lists or graph nodes visited.

    `needed`: the least setting that loses at most ALLOWED, no key where none does; `served`: that of the release;
    `most`: the greatest that was tried, where lists are probed all of them; `lost`: share of the exact nDCG@10 that is
    lost at `needed`, or at `most`.
    """

    title = "Search effort"
    part: ClassVar[Part] = "speed"
    analysis = True

    def measure(self, evaluated: EvaluatedTower) -> dict[str, Any] | None:
        """Of up to _QUERIES queries."""
        rows = drawn_rows(len(evaluated.vectors), _QUERIES, evaluated.seed)
        ids, texts = ([values[row] for row in rows] for values in (evaluated.judged.query_ids, evaluated.judged.texts))
        judged = replace(evaluated.judged, query_ids=ids, texts=texts)
        return measure_effort(evaluated.tower.release, judged, evaluated.vectors[rows])

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "How many lists of the index must be probed (nprobe), or candidates kept (efSearch), until a model loses at"
            " most 1 % of the nDCG@10 of its own exact search. If even probing all lists is not enough, the loss comes"
            " from vector compression."
        )

        def row(effort: Mapping[str, Any]) -> list[str]:
            alternative = "none is enough" if effort["knob"] == "nprobe" else "more"
            numbers = [f"{effort[key]:,}" if key in effort else alternative for key in ("needed", "served", "most")]
            return [effort["knob"], *numbers, percent(effort["lost"])]

        yield model_table(["model", "setting", "needed", "as served", "tried up to", "lost"], value, row)


def measure_effort(release: Release, judged: JudgedSet, vectors: np.ndarray) -> dict[str, Any] | None:
    """`effort` of metrics.json, of embeddings `(queries, dim)` of a judged set; None for an index that has no knob."""
    dataset = judged.dataset
    if "ann" not in release.kinds(dataset):
        return None
    index, served = release.index(dataset, "ann"), release.entries[dataset]["indexes"]["ann"]["settings"]
    steps, exact = ladder(index), _ndcg(release, judged, vectors, "flat")
    if steps is None or exact == 0:
        return None
    knob, values = steps
    lost, at = 0.0, values[-1]
    try:
        for at in values:
            apply_settings(index, {knob: at})
            lost = 1 - _ndcg(release, judged, vectors, "ann") / exact
            if lost <= ALLOWED:
                break
    finally:
        apply_settings(index, served)
    effort = {"knob": knob, "served": int(served.get(knob, 0)), "most": values[-1], "lost": lost}
    return effort | ({"needed": at} if lost <= ALLOWED else {})


def ladder(index: faiss.Index) -> tuple[str, Sequence[int]] | None:
    """The knob of an index's first layer and rising values of it; None for one that is always searched whole."""
    first, space = shards_of(index)[0], faiss.ParameterSpace()
    space.initialize(first)
    names = {space.parameter_ranges.at(position).name for position in range(space.parameter_ranges.size())}
    if "nprobe" in names:
        lists = faiss.extract_index_ivf(first).nlist
        return "nprobe", [*(value for value in _STEPS if value < lists), lists]
    if "efSearch" in names:
        return "efSearch", [value for value in _STEPS if value >= _LEAST_EF]
    return None


def _ndcg(release: Release, judged: JudgedSet, vectors: np.ndarray, kind: str) -> float:
    threads = torch.get_num_threads()
    take = tied_hits if kind == "flat" else other_hits
    scores, doc_ids = take(
        judged, judged.query_ids, lambda k: release.search(judged.dataset, vectors, k, kind, threads), _K
    )
    return float(ndcg_at_10(judged.qrels, judged.query_ids, doc_ids, scores).mean())
