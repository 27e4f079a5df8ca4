"""What an approximate index costs: size, search time and quality beside the exact one, asked by the teacher."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from slimtower.serving.release import Release
from steps.core.measures import NDCG
from steps.endpoint.module import WaitTime
from steps.evaluate.figures.base import Figure, Part, RenderContext, model_table
from steps.evaluate.formatting import Block, format_measure, milliseconds, size
from steps.evaluate.latency import Encode, Stopwatch, one_thread, sample
from steps.evaluate.scoring import Scored, score
from steps.evaluate.systems import dense_search


class Indexes(Figure):
    """`indexes.<set>.<kind>.bytes, p50_ms, nDCG@10` of metrics.json, of flat (exact) and ann (served).

    Milliseconds are of one search for ten hits; no nDCG@10 of the teacher's queries if these are not judged.
    """

    title = "Index"
    part: ClassVar[Part] = "speed"
    position = 2

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield "The teacher searches ten hits in the exact index (flat) and in the index that serves (ann)."
        yield model_table(
            ["index", "size", "search p50, ms", NDCG],
            value,
            lambda row: [size(row["bytes"]), milliseconds(row["p50_ms"]), format_measure(row, NDCG)],
        )


def measure_indexes(
    release: Release, encode: Encode, dataset: str, texts: Sequence[str], timed: int, seed: int, flat: Scored | None
) -> dict[str, dict[str, float]]:
    """`[kind]` of one data set: bytes on disk, median milliseconds of `timed` searches for ten hits, one thread.

    `flat`: the teacher's scores over the exact index, if queries are judged: then nDCG@10 of each index as well,
    of the ten hits that it finds if it is asked for ten: one that re-ranks finds better ones if it is asked for more.
    """
    vectors = encode(sample(texts, timed, seed))
    measured: dict[str, dict[str, float]] = {}
    for kind in ("flat", "ann"):
        if kind in release.kinds(dataset):  # the exact index may be the only one
            p50_ms = _median_search(release, dataset, vectors, kind)
            measured[kind] = {"bytes": release.index_bytes(dataset, kind), "p50_ms": p50_ms}
            if flat:
                search = dense_search(encode, release, kind)
                scored = flat if kind == "flat" else score(f"teacher, {kind}", search, flat.judged, 10)
                measured[kind][NDCG] = scored.means()[NDCG]
    return measured


def _median_search(release: Release, dataset: str, vectors: np.ndarray, kind: str) -> float:
    times, watch = [], Stopwatch(WaitTime())
    with one_thread():
        for vector in vectors:
            watch.lap()
            release.search(dataset, vector[None], 10, kind)
            times.append(watch.lap())
    return float(np.median(times)) * 1000
