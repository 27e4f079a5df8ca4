"""Where a release comes from: commit, dvc.lock, data, pipeline run. Checked against the files, then kept as tags."""

import hashlib
import os
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.registry.client import tracking_uri
from steps.promote.candidate import metrics_of
from steps.promote.dvc_lock import REMEDY, Stages, check_outputs, check_recorded, dvc_md5, lock_stages, outputs
from steps.promote.registration import Origin
from steps.promote.registry import PREFIX, Registry
from steps.tracking.run_ids import git_commit, scheduler_tags

LOCK = Path("dvc.lock")
_FILES = ("dvc.lock", "params.yaml", "sources.json", "models.json", "images.lock")


def check_evaluation(reports: Path, ingest: Path) -> Stages:
    """The stages of dvc.lock; UserError when data or reports, which a student is chosen by, are not what it records.

    Paths are relative to the project's root, where dvc.lock lies.
    """
    stages = lock_stages(LOCK)
    if not stages:
        raise UserError(f"{LOCK}: not found or empty; {REMEDY}")
    check_outputs(stages, "ingest")
    for name in ("metrics.json", "report.md", "per_query.parquet", "slices.parquet"):
        check_recorded(stages, "evaluate", reports / name)
    _check_evaluated(stages, ingest)
    return stages


def check_measured(student: str, release: Path, reports: Path) -> None:
    """UserError unless the evaluation measured this very release; dvc.lock tells where all releases are there."""
    with metrics_of(reports) as metrics:
        measured = metrics["releases"].get(student)
    manifest = release / "manifest.json"
    if read_json(manifest).get("checksum") != measured:
        raise UserError(f"{manifest}: the evaluation measured another release of {student}; {REMEDY}")


def read_origin(registry: Registry, stages: Stages, student: str, release: Path, ingest: Path) -> Origin:
    """The origin of a student's release; UserError when that is not what dvc.lock records, with these `stages`.

    The pipeline's run is SLIMTOWER_PARENT_RUN, else the earliest that ended with this dvc.lock.
    """
    release_md5 = check_recorded(stages, f"release@{student}", release)
    _check_evaluated(stages, release)
    digest = sha256_file(LOCK)
    parent = _pipeline_run(registry, digest)
    tags = {
        "student": student,
        "git_commit": parent.data.tags.get(f"{PREFIX}git_commit", "unknown") if parent else git_commit(),
        "dvc_lock": digest,
        "dvc_lock_md5": hashlib.md5(LOCK.read_bytes(), usedforsecurity=False).hexdigest(),
        "data_md5": dvc_md5(ingest),
        "release_md5": release_md5,
    }
    if parent:
        tags["pipeline_run"] = str(parent.info.run_id)
        if run := parent.data.tags.get(f"{PREFIX}airflow_run"):
            tags["airflow_run"] = run
    tags |= {key.removeprefix(PREFIX): value for key, value in scheduler_tags().items()}
    files = [path for name in _FILES if (path := Path(name)).is_file()]
    return Origin(tags, files, str(parent.info.run_id) if parent else None)


def _check_evaluated(stages: Stages, folder: Path) -> None:
    """The evaluation read this very folder, one that holds it, or files of it; UserError when they changed since."""
    recorded = {Path(item["path"]): item.get("md5") for item in stages["evaluate"].get("deps", [])}
    read_paths = [path for path in recorded if path == folder or path in folder.parents or folder in path.parents]
    if not read_paths:
        raise UserError(f"dvc.lock: stage evaluate does not depend on {folder}; {REMEDY}")
    for path in read_paths:
        if dvc_md5(path) != recorded[path]:
            _only_incomplete(stages, path)


def _only_incomplete(stages: Stages, folder: Path) -> None:
    """Other students' releases were not fetched, so dvc.lock alone says what was evaluated; else UserError."""
    outs = [path for entry in stages.values() for path in outputs(entry) if folder in path.parents]
    missing = sorted(path.name for path in outs if not path.exists())
    if not missing:
        raise UserError(f"{folder}: changed since it was evaluated; {REMEDY}")
    print(f"promote: {folder} lacks {', '.join(missing)}: taken from dvc.lock that the evaluation read this release")


def _pipeline_run(registry: Registry, lock_digest: str) -> Any | None:
    """The run that SLIMTOWER_PARENT_RUN names, else the earliest that ended with this dvc.lock, if there is one."""
    if run_id := os.environ.get("SLIMTOWER_PARENT_RUN"):
        if (run := registry.run(run_id)) is None:
            raise UserError(
                f"SLIMTOWER_PARENT_RUN is {run_id!r}: {tracking_uri()} has no such run; name the run that made this"
                " release, or none"
            )
        return run
    if not registry.has_experiment():  # which a dry run does not make
        return None
    condition = f"tags.`{PREFIX}dvc_lock` = '{lock_digest}' and tags.`{PREFIX}pipeline` != ''"
    runs = registry.api.search_runs(
        [registry.experiment()], condition, order_by=["attributes.start_time ASC"], max_results=1
    )
    return runs[0] if runs else None
