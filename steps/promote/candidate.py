"""The candidate: one student's release with what the last evaluation measured of it."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from steps.core.errors import UserError
from steps.core.files import folder_bytes, read_json, sha256_file
from steps.core.tables import read_table
from steps.promote.evidence import MEASURE, Evaluation, Evidence
from steps.promote.params import Policy


@dataclass(frozen=True)
class Candidate:
    """A release on disk and the evidence for it."""

    student: str
    release: Path
    evidence: Evidence


def choose_student(named: str, reports: Path, releases: Path, policy: Policy) -> str:
    """The named student, or of those within the policy's budgets the evaluation's choice, else the best.

    The best on dev, or on test without dev queries. Only releases that are there count. UserError when the last
    evaluation did not measure the named one, or when none is within the budgets.
    """
    metrics = read_json(reports / "metrics.json")
    students = sorted(metrics["retention"])
    if named:
        if named not in students:
            raise UserError(f"promote: student {named!r} was not evaluated; {reports / 'metrics.json'} has {students}")
        return named
    quality = metrics["datasets_dev"] or metrics["datasets"]
    means = {
        student: float(np.mean([models[student][MEASURE] for models in quality.values()]))
        for student in students
        if (releases / student).is_dir()
        and _p50_ms(metrics, student) <= policy.max_p50_ms
        and folder_bytes(releases / student / "index") <= policy.max_index_bytes
    }
    if not means:
        raise UserError(
            f"promote.policy: none of {students} has a release in {releases} and is within max_p50_ms"
            f" {policy.max_p50_ms:g} and max_index_bytes {policy.max_index_bytes}; raise a budget, distil a smaller"
            " student, or run `dvc pull` where releases are missing"
        )
    chosen = metrics.get("choice", {}).get("student")
    return chosen if chosen in means else min(means, key=lambda student: (-means[student], student))


def read_candidate(student: str, reports: Path, releases: Path, evaluation: Evaluation) -> Candidate:
    """The student's release with its per-query values on the test split; UserError when files are missing."""
    release = releases / student
    manifest = read_json(release / "manifest.json")
    evidence = Evidence(
        release=release_digest(release),
        evaluation=evaluation,
        datasets=frozenset(manifest["datasets"]),
        values=_test_values(reports, student),
        p50_ms=_p50_ms(read_json(reports / "metrics.json"), student),
        index_bytes=folder_bytes(release / "index"),
    )
    return Candidate(student, release, evidence)


def release_digest(folder: Path) -> str:
    """Hex sha256 over the names and contents of all files of a release."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(folder).as_posix()}\n{sha256_file(path)}\n".encode())
    return total.hexdigest()


def _p50_ms(metrics: Mapping[str, Any], student: str) -> float:
    """Median latency in milliseconds; infinite where it was not measured, so that no budget holds it."""
    return float(metrics["latency"].get(student, {}).get("p50_ms", math.inf))


def _test_values(reports: Path, student: str) -> dict[str, dict[str, float]]:
    table = read_table(reports, "per_query")
    wanted = {"model": student, "split": "test", "measure": MEASURE}
    for column, value in wanted.items():
        table = table.filter(pc.equal(table[column], value))
    values: dict[str, dict[str, float]] = {}
    for row in table.select(["dataset", "query_id", "value"]).to_pylist():
        values.setdefault(row["dataset"], {})[row["query_id"]] = row["value"]
    return values
