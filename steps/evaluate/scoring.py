"""A system's answers to an evaluation set, scored query by query."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steps.core.progress import progress
from steps.evaluate.measures import MEASURES, per_query
from steps.evaluate.questions import EvaluationSet
from steps.evaluate.systems import Hits, Search
from steps.evaluate.trec import write_hits

BEST = 10  # hits of each query that are kept
_CHUNK = 256  # queries whose hits are in memory at once: 256,000 hits at k = 1000


@dataclass(frozen=True)
class Scored:
    """Per-query values of one system on one evaluation set: each measure as float64 `(queries,)`; its BEST hits."""

    model: str
    questions: EvaluationSet
    values: dict[str, np.ndarray]
    hits: Hits

    def means(self) -> dict[str, float]:
        """Mean of each published measure."""
        return {measure: float(self.values[measure].mean()) for measure in MEASURES}


def score(
    model: str, search: Search, questions: EvaluationSet, k: int, run_file: Path | None = None, run_depth: int = 0
) -> Scored:
    """Answer every query with `k` hits and score them; write the first `run_depth` hits to a TREC run file."""
    parts: dict[str, list[np.ndarray]] = {}
    best: Hits = ([], [])
    total = len(questions.query_ids)
    starts = range(0, total, _CHUNK)
    with ExitStack() as stack:
        file = stack.enter_context(run_file.open("w", encoding="utf-8")) if run_file else None
        what = f"{questions.dataset} {questions.split} {model}"
        for start in progress(starts, len(starts), what):
            ids = questions.query_ids[start : start + _CHUNK]
            scores, doc_ids = search(questions.dataset, questions.texts[start : start + _CHUNK], k)
            for measure, values in per_query(questions.judgements, ids, doc_ids, scores).items():
                parts.setdefault(measure, []).append(values)
            best[0].extend(row[:BEST].copy() for row in scores)  # a view would keep all hits in memory
            best[1].extend(row[:BEST] for row in doc_ids)
            if file:
                write_hits(file, questions.dataset, ids, doc_ids, scores, model, run_depth)
    return Scored(model, questions, {measure: np.concatenate(part) for measure, part in parts.items()}, best)
