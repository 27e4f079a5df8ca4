"""`python -m steps.promote.smoke NAME VERSION`: does the registered version load and answer in a fresh process?

The golden queries were answered by the release before it was registered; the version that comes back from the registry
must give the same hits with the same scores.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from steps.core.errors import EXIT_TRANSIENT, TransientError, UserError, guarded
from steps.core.release import Release, load_release
from steps.core.tracking import tracking_uri
from steps.promote.registration import GOLDEN
from steps.promote.registry import Registry, reaching

TOLERANCE = 2e-3  # of a score: another processor rounds differently


class Golden(TypedDict):
    """A query with its hits, best first."""

    dataset: str
    text: str
    doc_ids: list[str]
    scores: list[float]


def golden_hits(folder: Path, count: int) -> list[Golden]:
    """What the release answers to its own probes on each data set; UserError when it does not verify."""
    release = load_release(folder)
    texts = [probe.text for probe in release.manifest.probes]
    return [hit for dataset in release.datasets for hit in _answers(release, dataset, texts, count)]


def differences(release: Release, golden: Sequence[Golden]) -> list[str]:
    """The golden queries that the release answers otherwise. Documents of equal score may change places."""
    found = []
    for expected in golden:
        answer = _answers(release, expected["dataset"], [expected["text"]], len(expected["doc_ids"]))[0]
        if not _same(expected, answer):
            found.append(
                f"{expected['dataset']}: {expected['text']!r} gave {answer['doc_ids'][:3]}, golden"
                f" {expected['doc_ids'][:3]}"
            )
    return found


def smoke_test(registry: Registry, version: str) -> None:
    """Run this module on the version in a process of its own; UserError with its last words when it fails."""
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"MLFLOW_TRACKING_URI": tracking_uri(), "PYTHONPATH": root}
    command = [sys.executable, "-m", "steps.promote.smoke", registry.name, version]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1].removeprefix("slimtower: ")
        kind = TransientError if done.returncode == EXIT_TRANSIENT else UserError
        raise kind(f"smoke test of {registry.name}/{version} failed: {said}; it was not promoted")


def _answers(release: Release, dataset: str, texts: list[str], count: int) -> list[Golden]:
    scores, doc_ids = release.search(dataset, release.encode(texts), count)
    return [
        Golden(dataset=dataset, text=text, doc_ids=ids, scores=[round(float(score), 6) for score in row[: len(ids)]])
        for text, ids, row in zip(texts, doc_ids, scores, strict=True)
    ]


def _same(expected: Golden, answer: Golden) -> bool:
    """Equal scores rank by rank; a document may only differ where its score ties with the last one's."""
    if len(expected["scores"]) != len(answer["scores"]):
        return False
    pairs = zip(expected["scores"], answer["scores"], strict=True)
    if not all(abs(left - right) <= TOLERANCE for left, right in pairs):
        return False
    last = min(expected["scores"], default=0.0)
    ranked = zip(expected["doc_ids"], expected["scores"], strict=True)
    return all(doc in answer["doc_ids"] or score - last <= TOLERANCE for doc, score in ranked)


def main() -> None:
    """Download, verify and ask."""
    name, version = sys.argv[1:3]
    with reaching(), tempfile.TemporaryDirectory(prefix="slimtower.") as place:
        registry = Registry(name)
        release = load_release(registry.download(version, Path(place)))
        wrong = differences(release, registry.document(version, GOLDEN) or [])
    if wrong:
        raise UserError(f"{len(wrong)} golden queries differ; {wrong[0]}")


if __name__ == "__main__":
    guarded(main)
