"""What an approximate index costs: size, search time and quality beside the exact one, asked by the teacher."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from steps.core.release import Release
from steps.evaluate.latency import Encode, one_thread, sample
from steps.evaluate.scoring import Scored, score
from steps.evaluate.systems import dense_search


@dataclass(frozen=True)
class IndexFigures:
    """Bytes on disk, median milliseconds of one search for ten hits, nDCG@10 of the teacher's queries."""

    bytes: int
    p50_ms: float
    ndcg: float

    def as_dict(self) -> dict[str, float]:
        """Key of metrics.json -> value."""
        named: dict[str, float] = asdict(self)
        named["nDCG@10"] = named.pop("ndcg")
        return named


def measure_indexes(
    release: Release, index: Path, encode: Encode, exact: Sequence[Scored], timed: int, k: int, seed: int
) -> dict[str, dict[str, IndexFigures]]:
    """Figures of every index kind that was built, per data set: `result[dataset][kind]`; one thread, `timed` searches.

    `exact`: the teacher's scores over the flat index, one entry a data set.
    """
    result: dict[str, dict[str, IndexFigures]] = {}
    for flat in exact:
        asked = flat.questions
        vectors = encode(sample(asked.texts, timed, seed))
        figures = {}
        for kind in ("flat", "ann"):
            files = sorted((index / asked.dataset).glob(f"{kind}*.faiss"))
            if not files:
                continue  # the exact index serves, or the corpus is too small for another
            search = dense_search(encode, release, kind)
            scored = flat if kind == "flat" else score(f"teacher, {kind}", search, asked, k)
            figures[kind] = IndexFigures(
                bytes=sum(path.stat().st_size for path in files),
                p50_ms=_median_search(release, asked.dataset, vectors, kind),
                ndcg=scored.means()["nDCG@10"],
            )
        result[asked.dataset] = figures
    return result


def _median_search(release: Release, dataset: str, vectors: np.ndarray, kind: str) -> float:
    times = []
    with one_thread():
        for vector in vectors:
            start = time.perf_counter()
            release.search(dataset, vector[None], 10, kind)
            times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1000
