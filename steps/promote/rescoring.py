"""Measure a registered release on the evaluation that stands now: its old encoder with its own old index and code."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import folder_digest
from steps.core.judged import JudgedSet
from steps.core.measures import ndcg_at_10
from steps.promote.candidate import index_bytes
from steps.promote.evidence import Evaluation, Evidence
from steps.promote.fresh_process import ask

_DEPTH = 1000  # hits a query, as the evaluation takes them: equal scores at the cut are ordered among all of these
TIMEOUT_S = 7200.0  # seconds, in which ten thousand queries search ten million documents
_WRITTEN_BY = "was written by"  # how slimtower/serving tells of an index of another faiss or bm25s
_SUBJECT = "measuring the champion on the present evaluation"
_OTHER_PACKAGES = (
    "; rolling back does not help, as older versions have those packages too: release the champion's student again with"
    " today's, on the data on which it was promoted, and promote that first; or promote this one from a checkout with"
    " the champion's packages (docs/tracking.md)"
)
_NOT_LOADED = (
    "; if it cannot be loaded any more, roll back, or delete its alias: the next promotion then counts as the first"
)
_SCRIPT = Path(__file__).with_name("searching.py")
_PROJECT = Path(__file__).resolve().parents[2]


def rescore(folder: Path, evaluation: Evaluation, judged: Sequence[JudgedSet], p50_ms: float) -> Evidence:
    """Evidence of the release in `folder`, over its exact index as in the evaluation; data sets it lacks are left out.

    Where the release fuses with BM25, its answers are the fused ones.

    A document that is newer than the release is one that it cannot find, and counts as missed. UserError when the
    release does not verify.
    """
    queries = [{"dataset": item.dataset, "texts": item.texts} for item in judged]
    request = {"release": str(folder), "depth": _DEPTH, "queries": queries}
    environment = os.environ | {"PYTHONPATH": str(own_code(folder).resolve())}
    result: dict[str, Any] = ask(_SCRIPT, request, environment, _SUBJECT, TIMEOUT_S, _advice)
    hits = {answer["dataset"]: answer["hits"] for answer in result["answers"]}
    return Evidence(
        release=folder_digest(folder),
        evaluation=evaluation,
        datasets=frozenset(result["datasets"]),
        values={item.dataset: _ndcg(hits[item.dataset], item) for item in judged if item.dataset in hits},
        p50_ms=p50_ms,
        index_bytes=index_bytes(folder),
    )


def _ndcg(hits: Sequence[Sequence[tuple[str, float]]], judged: JudgedSet) -> dict[str, float]:
    if judged.ignore_identical_ids:
        pairs = zip(judged.query_ids, hits, strict=True)
        hits = [[hit for hit in row if hit[0] != query] for query, row in pairs]
    doc_ids = [[doc for doc, _ in row] for row in hits]
    scores = [np.array([score for _, score in row]) for row in hits]
    values = ndcg_at_10(judged.qrels, judged.query_ids, doc_ids, scores)
    return dict(zip(judged.query_ids, values.tolist(), strict=True))


def own_code(folder: Path) -> Path:
    """The code that was registered with a release, beside it in its model's folder; else the project's."""
    libraries = "slimtower/serving/release.py", "steps/serving/release.py"  # today's, and the one before it
    registered = (parent / "code" for parent in folder.parents)
    return next((code for code in registered if any((code / name).is_file() for name in libraries)), _PROJECT)


def _advice(reason: str) -> str:
    return _OTHER_PACKAGES if _WRITTEN_BY in reason else _NOT_LOADED
