"""Measure a registered release on the evaluation that stands now: its old encoder with its own old index."""

from collections.abc import Sequence
from pathlib import Path

import ir_measures
from ir_measures import nDCG

from steps.core.files import folder_bytes
from steps.core.progress import progress
from steps.core.release import Release, load_release
from steps.promote.candidate import release_digest
from steps.promote.evaluation import Questions
from steps.promote.evidence import Evaluation, Evidence

_CHUNK = 256  # queries whose hits are in memory at once
_DEPTH = 1000  # hits a query, as the evaluation takes them: equal scores at the cut are ordered among all of these
_MEASURE = nDCG @ 10


def rescore(folder: Path, evaluation: Evaluation, questions: Sequence[Questions], p50_ms: float) -> Evidence:
    """Evidence of the release in `folder`, over its exact index as in the evaluation; data sets it lacks are left out.

    A document that is newer than the release is one that it cannot find, and counts as missed. UserError when the
    release does not verify.
    """
    release = load_release(folder)
    served = [item for item in questions if item.dataset in release.datasets]
    return Evidence(
        release=release_digest(folder),
        evaluation=evaluation,
        datasets=frozenset(release.datasets),
        values={item.dataset: ndcg(release, item) for item in served},
        p50_ms=p50_ms,
        index_bytes=folder_bytes(folder / "index"),
    )


def ndcg(release: Release, questions: Questions) -> dict[str, float]:
    """nDCG@10 by query id, with trec_eval's gains and ties; a query without hits counts 0."""
    values = dict.fromkeys(questions.query_ids, 0.0)
    starts = range(0, len(questions.query_ids), _CHUNK)
    for start in progress(starts, len(starts), f"re-scoring {questions.dataset}"):
        ids = questions.query_ids[start : start + _CHUNK]
        vectors = release.encode(questions.texts[start : start + _CHUNK])
        scores, doc_ids = release.search(questions.dataset, vectors, _DEPTH, "flat")
        hits = {
            query: dict(zip(docs, row.tolist(), strict=False))  # an index of fewer documents pads its scores
            for query, docs, row in zip(ids, doc_ids, scores, strict=True)
        }
        judged = [ir_measures.Qrel(q, doc, grade) for q in ids for doc, grade in questions.judgements[q].items()]
        for metric in ir_measures.pytrec_eval.iter_calc([_MEASURE], judged, hits):
            values[metric.query_id] = float(metric.value)
    return values
