"""A registered version in a process of its own, by the code registered with it: smoke test, and measuring it anew.

The golden queries were answered by the release before it was registered; the version that comes back from the registry
must give the same hits with the same scores. A champion is measured on the evaluation that stands now: its old encoder
with its own old index and code.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from slimtower.common.errors import EXIT_TRANSIENT, TransientError, UserError
from slimtower.common.files import folder_digest
from slimtower.common.masking import redacted
from slimtower.lexical.fusion import WeightedSum
from slimtower.registry.client import tracking_uri
from slimtower.serving.release import load_release
from steps.core.judged import JudgedSet
from steps.core.measures import ndcg_at_10
from steps.promote.evidence import Evaluation, Evidence, index_bytes
from steps.promote.registry import Registry

GOLDEN = "golden.json"  # a version's golden queries
GOLDEN_HITS = 10  # of a golden query that the registered version must give in a fresh process
TOLERANCE = 2e-3  # of a score: another processor rounds differently
SUM_TOLERANCE = 2e-2  # of a sum of normalised scores, which differ by as much as theirs do, over their range
SMOKE_TIMEOUT_S = 1800.0  # seconds, in which 20 GB can be fetched and loaded
_ANSWERING = Path(__file__).with_name("answering.py")
_DEPTH = 1000  # hits a query, as the evaluation takes them: equal scores at the cut are ordered among all of these
RESCORE_TIMEOUT_S = 7200.0  # seconds, in which ten thousand queries search ten million documents
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
_SEARCHING = Path(__file__).with_name("searching.py")
_PROJECT = Path(__file__).resolve().parents[2]


def ask(
    script: Path,
    request: Any,
    environment: Mapping[str, str],
    subject: str,
    timeout_s: float,
    advise: Callable[[str], str] = lambda reason: "",
) -> Any:
    """The JSON of the last line that `python -P script` prints when it reads the request; errors name the `subject`.

    UserError with its last line on stderr and what `advise` says to that; TransientError if it reached no server or
    store (exit code 75), was killed, or took more than `timeout_s` seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(script)],
            env=environment,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"{subject}: stopped after {timeout_s:g} s; look at what else runs here and at the artefact store, then run"
            " again"
        ) from None
    if done.returncode < 0:
        raise TransientError(
            f"{subject}: killed by signal {-done.returncode}, most likely for its memory; give it more, then run again"
        )
    reason = (redacted(done.stderr).strip().splitlines() or ["nothing"])[-1][:500]
    if done.returncode == EXIT_TRANSIENT:
        raise TransientError(f"{subject}: not reached: {reason}; try again")
    if done.returncode:
        raise UserError(f"{subject}: it does not load and answer: {reason}{advise(reason)}")
    return json.loads(done.stdout.splitlines()[-1])


class Golden(TypedDict):
    """A query with its hits, best first, and by how much a score may differ (TOLERANCE where that is not said)."""

    dataset: str
    text: str
    doc_ids: list[str]
    scores: list[float]
    tolerance: NotRequired[float]


def golden_hits(folder: Path, count: int) -> list[Golden]:
    """What the release answers to its own probes on each data set; UserError when it does not verify."""
    release = load_release(folder)
    texts = [probe.text for probe in release.manifest.probes]
    return [
        Golden(
            dataset=dataset,
            text=text,
            doc_ids=[hit.id for hit in hits],
            scores=[round(hit.score, 6) for hit in hits],
            tolerance=SUM_TOLERANCE if isinstance(release.fusion(dataset), WeightedSum) else TOLERANCE,
        )
        for dataset in release.datasets
        for text, hits in zip(texts, release.query_all(texts, count, dataset), strict=True)
    ]


def smoke_test(registry: Registry, version: str) -> None:
    """Load a version in a process of its own and ask its golden queries; errors as those of `ask`."""
    golden: list[Golden] | None = registry.document(version, GOLDEN)
    if not golden:
        raise UserError(f"{registry.name}/{version}: has no golden queries; register its release with `make promote`")
    queries = [{"text": g["text"], "dataset": g["dataset"], "k": len(g["doc_ids"])} for g in golden]
    request = {"model": f"models:/{registry.name}/{version}", "queries": queries}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subject = f"smoke test of {registry.name}/{version}"
    with tempfile.TemporaryDirectory(prefix="slimtower-smoke-") as scratch:  # MLflow leaves what it fetches there
        environment |= {"MLFLOW_TRACKING_URI": tracking_uri(), "TMPDIR": scratch}
        answers: list[dict[str, Any]] = ask(_ANSWERING, request, environment, subject, SMOKE_TIMEOUT_S)
    if wrong := differences(golden, answers):
        raise UserError(f"{subject}: {len(wrong)} of {len(golden)} golden queries differ; {wrong[0]}")


def differences(golden: Sequence[Golden], answers: Sequence[dict[str, Any]]) -> list[str]:
    """The golden queries that were answered otherwise. Documents of equal score may change places."""
    return [
        f"{expected['dataset']}: {expected['text']!r} gave {answer['doc_ids'][:3]}, golden {expected['doc_ids'][:3]}"
        for expected, answer in zip(golden, answers, strict=True)
        if not _same(expected, answer)
    ]


def _same(expected: Golden, answer: dict[str, Any]) -> bool:
    """Equal scores rank by rank; a document may only be missing where its score ties with the last one's."""
    if len(expected["scores"]) != len(answer["scores"]):
        return False
    pairs = zip(expected["scores"], answer["scores"], strict=True)
    tolerance = expected.get("tolerance", TOLERANCE)
    if not all(abs(expected_score - actual_score) <= tolerance for expected_score, actual_score in pairs):
        return False
    last = min(expected["scores"], default=0.0)
    ranked = zip(expected["doc_ids"], expected["scores"], strict=True)
    return all(doc in answer["doc_ids"] or score - last <= tolerance for doc, score in ranked)


def rescore(folder: Path, evaluation: Evaluation, judged: Sequence[JudgedSet], p50_ms: float) -> Evidence:
    """Evidence of the release in `folder`, over its exact index, on the data sets that it has, by what it serves.

    A document that is newer than the release counts as missed. UserError when the release does not verify.
    """
    queries = [{"dataset": item.dataset, "texts": item.texts} for item in judged]
    request = {"release": str(folder), "depth": _DEPTH, "queries": queries}
    environment = os.environ | {"PYTHONPATH": str(own_code(folder).resolve())}
    result: dict[str, Any] = ask(_SEARCHING, request, environment, _SUBJECT, RESCORE_TIMEOUT_S, _advice)
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
