"""A system's answers to a judged set, scored query by query."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steps.core.judged import JudgedSet
from steps.core.measures import MEASURES, per_query
from steps.core.progress import progress
from steps.evaluate.systems import Hits, Search
from steps.evaluate.trec import write_hits

BEST = 10  # hits of each query that are kept
_CHUNK = 256  # queries whose hits are in memory at once: 256,000 hits at k = 1000


@dataclass(frozen=True)
class Scored:
    """Per-query values of one system on one judged set: each measure, and UNCUT, as float64 `(queries,)`."""

    judged: JudgedSet
    values: dict[str, np.ndarray]

    def means(self) -> dict[str, float]:
        """Mean of each published measure."""
        return {measure: float(self.values[measure].mean()) for measure in MEASURES}


def score(name: str, search: Search, judged: JudgedSet, k: int) -> Scored:
    """Answer every query with `k` hits and score them; `name` is shown as the work goes on."""
    return score_and_keep(name, search, judged, k)[0]


def score_and_keep(
    name: str, search: Search, judged: JudgedSet, k: int, run_file: Path | None = None, run_depth: int = 0
) -> tuple[Scored, Hits]:
    """The same, and the BEST hits of each query; write the first `run_depth` hits to a TREC run file."""
    chunks: dict[str, list[np.ndarray]] = {}
    best: Hits = ([], [])
    starts = range(0, len(judged.query_ids), _CHUNK)
    with ExitStack() as stack:
        file = stack.enter_context(run_file.open("w", encoding="utf-8")) if run_file else None
        for start in progress(starts, len(starts), f"{judged.dataset} {judged.split} {name}"):
            ids = judged.query_ids[start : start + _CHUNK]
            scores, doc_ids = search(judged.dataset, judged.texts[start : start + _CHUNK], k)
            for measure, values in per_query(judged.qrels, ids, doc_ids, scores).items():
                chunks.setdefault(measure, []).append(values)
            best[0].extend(row[:BEST].copy() for row in scores)  # a view would keep all hits in memory
            best[1].extend(row[:BEST] for row in doc_ids)
            if file:
                write_hits(file, judged.dataset, ids, doc_ids, scores, name, run_depth)
    return Scored(judged, {measure: np.concatenate(arrays) for measure, arrays in chunks.items()}), best
