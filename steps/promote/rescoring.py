"""Measure a registered release on the evaluation that stands now: its old encoder with its own old index and code."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ir_measures
from ir_measures import nDCG

from steps.core.errors import TransientError, UserError
from steps.core.files import folder_bytes
from steps.promote.candidate import release_digest
from steps.promote.evaluation import Questions
from steps.promote.evidence import Evaluation, Evidence

_DEPTH = 1000  # hits a query, as the evaluation takes them: equal scores at the cut are ordered among all of these
_MEASURE = nDCG @ 10
_SCRIPT = Path(__file__).with_name("searching.py")
_PROJECT = Path(__file__).resolve().parents[2]


def rescore(folder: Path, evaluation: Evaluation, questions: Sequence[Questions], p50_ms: float) -> Evidence:
    """Evidence of the release in `folder`, over its exact index as in the evaluation; data sets it lacks are left out.

    A document that is newer than the release is one that it cannot find, and counts as missed. UserError when the
    release does not verify.
    """
    found = _search(folder, questions)
    hits = {answer["dataset"]: answer["hits"] for answer in found["answers"]}
    return Evidence(
        release=release_digest(folder),
        evaluation=evaluation,
        datasets=frozenset(found["datasets"]),
        values={item.dataset: ndcg(hits[item.dataset], item) for item in questions if item.dataset in hits},
        p50_ms=p50_ms,
        index_bytes=folder_bytes(folder / "index"),
    )


def ndcg(hits: Sequence[Sequence[tuple[str, float]]], questions: Questions) -> dict[str, float]:
    """nDCG@10 by query id, with trec_eval's gains and ties; a query without hits counts 0."""
    values = dict.fromkeys(questions.query_ids, 0.0)
    run = {query: dict(found) for query, found in zip(questions.query_ids, hits, strict=True)}
    judged = [
        ir_measures.Qrel(q, doc, grade) for q, docs in questions.judgements.items() for doc, grade in docs.items()
    ]
    for metric in ir_measures.pytrec_eval.iter_calc([_MEASURE], judged, run):
        values[metric.query_id] = float(metric.value)
    return values


def own_code(folder: Path) -> Path:
    """The code that was registered with a release, beside it in its model's folder; else the project's."""
    own = [parent / "code" for parent in folder.parents if (parent / "code/steps/serving/release.py").is_file()]
    return own[0] if own else _PROJECT


def _search(folder: Path, questions: Sequence[Questions]) -> dict[str, Any]:
    """What searching.py answers, in a process whose `steps` are those of the release."""
    asked = [{"dataset": item.dataset, "texts": item.texts} for item in questions]
    done = subprocess.run(
        [sys.executable, "-P", str(_SCRIPT)],
        env=os.environ | {"PYTHONPATH": str(own_code(folder).resolve())},
        input=json.dumps({"release": str(folder), "depth": _DEPTH, "questions": asked}),
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        raise TransientError(
            f"measuring the champion was killed by signal {-done.returncode}, most likely for its memory; give it more,"
            " then run again"
        )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(
            f"the champion cannot be measured on the present evaluation: {said[:500]}; if it cannot be loaded any more,"
            " roll back, or delete its alias: the next promotion then counts as the first"
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
