"""A system's answers to a judged set, scored query by query."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from steps.core.judged import JudgedSet, other_hits, tied_hits
from steps.core.measures import NDCG, UNCUT, per_query
from steps.core.progress import progress
from steps.evaluate.answers import answer_measures, score_answers
from steps.evaluate.systems import Hits, Search
from steps.evaluate.trec import write_hits

BEST = 10  # hits of each query that are kept
_CHUNK = 256  # queries whose hits are in memory at once: 256,000 hits at k = 1000


@dataclass(frozen=True)
class Scored:
    """Per-query values of one system on one judged set: each measure, and UNCUT, as float64 `(queries,)`.

    NaN: the query has no answer strings to look for. `pooled`: measures over all judged pairs at once.
    """

    judged: JudgedSet
    values: dict[str, np.ndarray]
    pooled: Mapping[str, float] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """Mean of each published measure, and what is pooled."""
        return {name: float(np.nanmean(self.values[name])) for name in self.values if name != UNCUT} | dict(self.pooled)


def score(name: str, search: Search, judged: JudgedSet, k: int, *, exact: bool = False) -> Scored:
    """Answer every query with `k` hits and score them by nDCG@10; `name` is shown as the work goes on.

    `exact`: of an exact index what ties with the last hit counts as well.
    """
    return score_and_keep(name, search, judged, k, [NDCG], take=tied_hits if exact else other_hits)[0]


def score_and_keep(
    name: str,
    search: Search,
    judged: JudgedSet,
    k: int,
    measures: Sequence[str],
    run_file: Path | None = None,
    run_depth: int = 0,
    take: Callable[..., Hits] = other_hits,
) -> tuple[Scored, Hits]:
    """Score by the named measures, and keep the BEST hits of each query; write `run_depth` hits to a TREC run file.

    `take`: how hits are taken from the search (steps/core/judged.py).
    """
    ranked = [measure for measure in measures if measure not in answer_measures(measures)]
    chunks: dict[str, list[np.ndarray]] = {}
    best: Hits = ([], [])
    starts = range(0, len(judged.query_ids), _CHUNK)
    with ExitStack() as stack:
        file = stack.enter_context(run_file.open("w", encoding="utf-8")) if run_file else None
        for start in progress(starts, len(starts), f"{judged.dataset} {judged.split} {name}"):
            ids = judged.query_ids[start : start + _CHUNK]
            search_chunk = partial(search, judged.dataset, judged.texts[start : start + _CHUNK])
            scores, doc_ids = take(judged, ids, search_chunk, k)
            values = per_query([*ranked, "RR"], judged.qrels, ids, doc_ids, scores, judged.relevant_from)
            values[UNCUT] = values["RR"]
            values = {measure: values[measure] for measure in (*ranked, UNCUT)}
            if judged.answering:
                values |= score_answers(answer_measures(measures), judged.answering, ids, doc_ids, scores)
            for measure, chunk in values.items():
                chunks.setdefault(measure, []).append(chunk)
            best[0].extend(row[:BEST].copy() for row in scores)  # a view would keep all hits in memory
            best[1].extend(row[:BEST] for row in doc_ids)
            if file:
                write_hits(file, judged.dataset, ids, doc_ids, scores, name, run_depth)
    return Scored(judged, {measure: np.concatenate(arrays) for measure, arrays in chunks.items()}), best
