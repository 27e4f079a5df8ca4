"""Measure a registered release on the evaluation that stands now: its old encoder with its own old index and code."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import folder_digest
from slimtower.common.masking import redacted
from steps.core.judged import JudgedSet
from steps.core.measures import ndcg_at_10
from steps.promote.candidate import index_bytes
from steps.promote.evidence import Evaluation, Evidence

_DEPTH = 1000  # hits a query, as the evaluation takes them: equal scores at the cut are ordered among all of these
TIMEOUT_S = 7200.0  # seconds, in which ten thousand queries search ten million documents
_WRITTEN_BY = "was written by"  # how slimtower/serving tells of an index of another faiss or bm25s
_OTHER_PACKAGES = (
    "rolling back does not help, as older versions have those packages too: release the champion's student again with"
    " today's, on the data on which it was promoted, and promote that first; or promote this one from a checkout with"
    " the champion's packages (docs/tracking.md)"
)
_NOT_LOADED = (
    "if it cannot be loaded any more, roll back, or delete its alias: the next promotion then counts as the first"
)
_SCRIPT = Path(__file__).with_name("searching.py")
_PROJECT = Path(__file__).resolve().parents[2]


def rescore(folder: Path, evaluation: Evaluation, judged: Sequence[JudgedSet], p50_ms: float) -> Evidence:
    """Evidence of the release in `folder`, over its exact index as in the evaluation; data sets it lacks are left out.

    Where the release fuses with BM25, its answers are the fused ones.

    A document that is newer than the release is one that it cannot find, and counts as missed. UserError when the
    release does not verify.
    """
    result = _search(folder, judged)
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
    """nDCG@10 by query id."""
    if judged.ignore_identical_ids:
        pairs = zip(judged.query_ids, hits, strict=True)
        hits = [[hit for hit in row if hit[0] != query] for query, row in pairs]
    doc_ids = [[doc for doc, _ in row] for row in hits]
    scores = [np.array([score for _, score in row]) for row in hits]
    values = ndcg_at_10(judged.qrels, judged.query_ids, doc_ids, scores)
    return dict(zip(judged.query_ids, values.tolist(), strict=True))


def own_code(folder: Path) -> Path:
    """The code that was registered with a release, beside it in its model's folder; else the project's."""
    libraries = "code/slimtower/serving/release.py", "code/steps/serving/release.py"  # today's, and the one before it
    registered = [parent / "code" for parent in folder.parents if any((parent / name).is_file() for name in libraries)]
    return registered[0] if registered else _PROJECT


def _search(folder: Path, judged: Sequence[JudgedSet]) -> dict[str, Any]:
    """What searching.py answers, in a process whose library is that of the release."""
    queries = [{"dataset": item.dataset, "texts": item.texts} for item in judged]
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT)],
            env=os.environ | {"PYTHONPATH": str(own_code(folder).resolve())},
            input=json.dumps({"release": str(folder), "depth": _DEPTH, "queries": queries}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"measuring the champion was stopped after {TIMEOUT_S:g} s; look at what else runs here, then run again"
        ) from None
    if done.returncode < 0:
        raise TransientError(
            f"measuring the champion was killed by signal {-done.returncode}, most likely for its memory; give it more,"
            " then run again"
        )
    if done.returncode:
        reason = (redacted(done.stderr).strip().splitlines() or ["nothing"])[-1]
        advice = _OTHER_PACKAGES if _WRITTEN_BY in reason else _NOT_LOADED
        raise UserError(f"the champion cannot be measured on the present evaluation: {reason[:500]}; {advice}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
