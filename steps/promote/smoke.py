"""The smoke test: does a registered version load and answer in a fresh process, as a service would load it?

The golden queries were answered by the release before it was registered; the version that comes back from the registry
must give the same hits with the same scores.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from slimtower.common.errors import UserError
from slimtower.lexical.fusion import WeightedSum
from slimtower.registry.client import tracking_uri
from slimtower.serving.release import load_release
from steps.promote.fresh_process import ask
from steps.promote.registration import GOLDEN
from steps.promote.registry import Registry

GOLDEN_HITS = 10  # of a golden query that the registered version must give in a fresh process
TOLERANCE = 2e-3  # of a score: another processor rounds differently
SUM_TOLERANCE = 2e-2  # of a sum of normalised scores, which differ by as much as theirs do, over their range
TIMEOUT_S = 1800.0  # seconds, in which 20 GB can be fetched and loaded
_SCRIPT = Path(__file__).with_name("answering.py")


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
        answers: list[dict[str, Any]] = ask(_SCRIPT, request, environment, subject, TIMEOUT_S)
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
