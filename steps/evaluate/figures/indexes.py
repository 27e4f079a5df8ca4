"""What an approximate index costs: size, search time and quality beside the exact one, asked by the teacher."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from slimtower.serving.release import Release
from steps.core.measures import NDCG
from steps.evaluate.figures.base import Figure, Part, RenderContext, cells
from steps.evaluate.formatting import Block, Table, milliseconds, size
from steps.evaluate.latency import Encode, one_thread, sample
from steps.evaluate.scoring import Scored, score
from steps.evaluate.systems import dense_search


class Indexes(Figure):
    """`indexes.<set>.<kind>` of metrics.json: the fields of `IndexFigures`, of flat (exact) and ann (served)."""

    title = "Index"
    part: ClassVar[Part] = "speed"
    position = 2

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        """A row an index."""
        yield "The teacher searches ten hits in the exact index (flat) and in the index that serves (ann)."
        yield Table(
            ["data set", "index", "size", "search p50, ms", NDCG],
            [
                [dataset, kind, size(measured["bytes"]), milliseconds(measured["p50_ms"]), _quality(measured)]
                for dataset, kind, measured in cells(value)
            ],
        )


def _quality(measured: Mapping[str, Any]) -> str:
    return f"{measured[NDCG]:.4f}" if NDCG in measured else "–"


@dataclass(frozen=True)
class IndexFigures:
    """Bytes on disk, median milliseconds of one search for ten hits, nDCG@10 of the teacher's queries if judged."""

    bytes: int
    p50_ms: float
    ndcg: float | None = None

    def as_dict(self) -> dict[str, float]:
        """Key of metrics.json -> value."""
        named = {"bytes": self.bytes, "p50_ms": self.p50_ms}
        return named if self.ndcg is None else named | {NDCG: self.ndcg}


def measure_indexes(
    release: Release, encode: Encode, exact: Sequence[Scored], timed: int, k: int, seed: int
) -> dict[str, dict[str, IndexFigures]]:
    """Figures of every index kind of a release, per data set: `result[dataset][kind]`; one thread, `timed` searches.

    `exact`: the teacher's scores over the flat index, one entry a data set.
    """
    result: dict[str, dict[str, IndexFigures]] = {}
    for flat in exact:
        judged = flat.judged
        result[judged.dataset] = timed_indexes(release, encode, judged.dataset, judged.texts, timed, seed)
        for kind, figures in result[judged.dataset].items():
            search = dense_search(encode, release, kind)
            scored = flat if kind == "flat" else score(f"teacher, {kind}", search, judged, k)
            result[judged.dataset][kind] = replace(figures, ndcg=scored.means()[NDCG])
    return result


def timed_indexes(
    release: Release, encode: Encode, dataset: str, texts: Sequence[str], timed: int, seed: int
) -> dict[str, IndexFigures]:
    """Size and speed of each index kind of one data set, without its nDCG."""
    vectors = encode(sample(texts, timed, seed))
    return {
        kind: IndexFigures(release.index_bytes(dataset, kind), _median_search(release, dataset, vectors, kind))
        for kind in ("flat", "ann")
        if kind in release.kinds(dataset)  # the exact index may be the only one
    }


def _median_search(release: Release, dataset: str, vectors: np.ndarray, kind: str) -> float:
    times = []
    with one_thread():
        for vector in vectors:
            start = time.perf_counter()
            release.search(dataset, vector[None], 10, kind)
            times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1000
