"""The candidate: one student's release with what the last evaluation measured of it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, folder_digest, read_json
from steps.core.tables import read_table
from steps.promote.evidence import MEASURE, Evaluation, Evidence
from steps.promote.malformed import reading
from steps.promote.params import Policy
from steps.retrieval.dataset_groups import weights

_TEACHER = "teacher"  # its name in the evaluation's tables


@dataclass(frozen=True)
class Candidate:
    """A release on disk and the evidence for it."""

    student: str
    release: Path
    evidence: Evidence
    card: str
    """What it is and what was measured of it, as Markdown."""


@dataclass(frozen=True)
class Served:
    """A student as its release serves it: alone, or on the data sets in `fused` fused with BM25."""

    student: str
    datasets: frozenset[str]
    fused: frozenset[str]

    def model(self, dataset: str) -> str:
        """What the evaluation calls what serves a data set."""
        return f"{self.student}+bm25" if dataset in self.fused else self.student

    def p50_ms(self, metrics: Mapping[str, Any]) -> float:
        """Median latency in milliseconds: text to embedding, or text to hits on the slowest data set that is fused.

        Infinite where a judged data set lacks its figure, so that no budget holds it; others are not timed.
        """
        rows = metrics.get("fused", {})
        measured = [rows[dataset].get(self.student) for dataset in sorted(self.fused & rows.keys())]
        figures = [metrics["latency"].get(self.student), *measured]
        return max(float(row["p50_ms"]) if row else math.inf for row in figures)


def read_served(student: str, release: Path) -> Served:
    """What the manifest of a release says."""
    path = release / "manifest.json"
    manifest = read_json(path)
    with reading(str(path), "run `dvc repro` to release it anew"):
        fusions = (manifest.get("lexical") or {}).get("fusions", {})
        return Served(student, frozenset(manifest["datasets"]), frozenset(fusions))


@contextmanager
def metrics_of(reports: Path) -> Iterator[dict[str, Any]]:
    """What the last evaluation measured, for a block that reads it; UserError where it lacks what the block needs."""
    path = reports / "metrics.json"
    with reading(str(path), "run `dvc repro evaluate` to write it anew"):
        yield read_json(path)


def choose_students(named: str, reports: Path, releases: Path, policy: Policy) -> list[str]:
    """The named student alone, or of those within the policy's budgets the evaluation's choice, and behind it the best:
    a choice may lose more than the gate allows.

    The best on dev, or on test without dev queries. Only releases that are there count. UserError when the last
    evaluation did not measure the named one, or when none is within the budgets.
    """
    with metrics_of(reports) as metrics:
        students = sorted(metrics["retention"])
        if named in students:
            return [named]
        if named:
            raise UserError(f"promote: student {named!r} was not evaluated; {reports / 'metrics.json'} has {students}")
        chosen = metrics.get("choice", {}).get("student")
        quality = metrics["datasets_dev"] or metrics["datasets"]
        joint = metrics.get("as_one_dev" if metrics["datasets_dev"] else "as_one", {})
        shares = weights(list(quality), list(joint))
        means = {
            student: float(
                np.average([row[served.model(dataset)][MEASURE] for dataset, row in quality.items()], weights=shares)
            )
            for student in students
            if (releases / student).is_dir()
            and (served := read_served(student, releases / student)).p50_ms(metrics) <= policy.max_p50_ms
            and index_bytes(releases / student) <= policy.max_index_bytes
        }
    if not means:
        raise UserError(
            f"promote.policy: none of {students} has a release in {releases} and is within max_p50_ms"
            f" {policy.max_p50_ms:g} and max_index_bytes {policy.max_index_bytes}; raise a budget, distil a smaller"
            " student, or run `dvc pull` where releases are missing"
        )
    best = min(means, key=lambda student: (-means[student], student))
    return [chosen, best] if chosen in means and chosen != best else [best]


def read_candidate(student: str, reports: Path, releases: Path, evaluation: Evaluation) -> Candidate:
    """The student's release with its per-query values on the test split; UserError when files are missing."""
    release = releases / student
    served = read_served(student, release)
    with metrics_of(reports) as metrics:
        p50_ms = served.p50_ms(metrics)
    evidence = Evidence(
        release=folder_digest(release),
        evaluation=evaluation,
        datasets=served.datasets,
        values=_test_values(reports, served.model),
        p50_ms=p50_ms,
        index_bytes=index_bytes(release),
        teacher=_test_values(reports, lambda dataset: _TEACHER),
    )
    return Candidate(student, release, evidence, read_card(release, reports))


def read_card(release: Path, reports: Path) -> str:
    """The release's card without its front matter, and the evaluation in short; UserError when one is missing."""
    report, card = reports / "report.md", release / "README.md"
    for path in (report, card):
        if not path.is_file():
            raise UserError(f"{path}: not found; run `dvc repro` to write it")
    body = card.read_text(encoding="utf-8").removeprefix("---\n").partition("\n---\n")[2].strip()
    return f"{body}\n\n## Evaluation\n\n{report.read_text(encoding='utf-8').strip()}"


def index_bytes(release: Path) -> int:
    """Size of all indexes of a release on disk, dense and lexical."""
    return folder_bytes(release / "index") + folder_bytes(release / "lexical")


def _test_values(reports: Path, model_of: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """`[data set][query id]`: nDCG@10 on test of the model that `model_of` names for a data set."""
    values: dict[str, dict[str, float]] = {}
    measured = (pc.field("split") == "test") & (pc.field("measure") == MEASURE)
    for row in read_table(reports, "per_query").filter(measured).to_pylist():
        if row["model"] == model_of(row["dataset"]):
            values.setdefault(row["dataset"], {})[row["query_id"]] = row["value"]
    return values
