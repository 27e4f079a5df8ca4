"""Where a release comes from, and lineage both ways: what a model was made of, which models were made of something.

A release's commit, dvc.lock, data and pipeline run are checked against the files, then kept as tags. Lineage goes
forward from NAME@alias or NAME/version, and backward from a git commit, the md5 or sha256 of a dvc.lock, of the
ingested data or of a release.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.common.settings import read_mapping
from slimtower.registry.client import tracking_uri
from steps.promote.dvc_lock import REMEDY, Stages, check_outputs, check_recorded, dvc_md5, lock_stages, outputs
from steps.promote.evidence import metrics_of
from steps.promote.promotion import Origin
from steps.promote.registry import PREFIX, Registry
from steps.tracking.run_ids import found_runs, git_commit, scheduler_tags

_BACKWARD = (
    "git_commit", "dvc_lock", "dvc_lock_md5", "data_md5", "release_md5", "release", "pipeline_run", "airflow_run"
)  # fmt: skip
_SHORTEST = 7  # digits of a digest that tell enough
LOCK = Path("dvc.lock")
_FILES = ("dvc.lock", "params.yaml", "sources.json", "models.json", "images.lock")


def made_of(reference: str) -> dict[str, Any]:
    """Everything behind NAME@alias or NAME/version; UserError when there is no such version."""
    name, _, which = reference.removeprefix("models:/").replace("@", "/@").partition("/")
    registry = Registry(name)
    aliases = registry.aliases()
    if which.startswith("@") and which[1:] not in aliases:
        raise UserError(f"{reference}: no such alias; {name} has {aliases or 'none'}")
    number = aliases[which[1:]] if which.startswith("@") else which
    version, tags = registry.version(number), registry.tags(number)
    files = _files(registry, str(version.run_id)) if version.run_id else {}
    behind = upstream(files.get("dvc.lock", {}), [f"release@{tags.get('student')}", "evaluate"])
    return {
        "model": f"{name}/{number}",
        "aliases": sorted(alias for alias, target in aliases.items() if target == number),
        "student": tags.get("student"),
        "release": {"sha256": tags.get("release"), "md5": tags.get("release_md5")},
        "git_commit": tags.get("git_commit"),
        "dvc_lock": {
            "md5": tags.get("dvc_lock_md5"),
            "sha256": tags.get("dvc_lock"),
            "file": f"runs:/{version.run_id}/dvc.lock" if "dvc.lock" in files else None,
        },
        "runs": {
            "pipeline": tags.get("pipeline_run"),
            "registration": version.run_id,
            "airflow": tags.get("airflow_run"),
        },
        "data": {"data/ingest": tags.get("data_md5")} | _data(files.get("dvc.lock", {})),
        "stages": _stages(registry, tags.get("pipeline_run"), behind),
        "images": files.get("images.lock"),
        "params": files.get("params.yaml"),
    }


def made_from(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """The versions whose commit, dvc.lock, data or release begins with `digest`; UserError when it is too short."""
    if len(digest) < _SHORTEST:
        raise UserError(f"lineage: {digest!r} is too short; give NAME@alias or at least {_SHORTEST} digits of a digest")
    aliases = registry.aliases()
    entries = []
    for number, tags in registry.all_tags().items():
        by = [key for key in _BACKWARD if tags.get(key, "").startswith(digest)]
        if by:
            names = sorted(alias for alias, target in aliases.items() if target == number)
            entry = {"model": f"{registry.name}/{number}", "aliases": names, "through": by}
            entries.append(entry | {key: tags.get(key) for key in ("student", "git_commit", "dvc_lock_md5")})
    return entries


def upstream(stages: Stages, targets: list[str]) -> Stages:
    """The first of the `targets` with all stages that it was made from, and the others alone; in dvc.lock's order.

    dvc.lock keeps stages that were renamed or dropped; no path leads to those.
    """
    reached = set(targets[1:]) & set(stages)
    waiting = [targets[0]] if targets[0] in stages else []
    while waiting:
        stage = waiting.pop()
        reached.add(stage)
        makers = {maker for item in stages[stage].get("deps", []) for maker in _makers(stages, item)}
        waiting += sorted(makers - reached)
    return {stage: entry for stage, entry in stages.items() if stage in reached}


def _makers(stages: Stages, dependency: Mapping[str, Any]) -> list[str]:
    """Stages with this very output; else those with an output inside the path, or around it."""
    outs = [(stage, out) for stage, entry in stages.items() for out in entry.get("outs", [])]
    path = PurePosixPath(dependency["path"])
    exact = {stage: out for stage, out in outs if PurePosixPath(out["path"]) == path}
    if exact:
        same = [stage for stage, out in exact.items() if out.get("md5") == dependency.get("md5")]
        return same or list(exact)
    near = [(stage, PurePosixPath(out["path"])) for stage, out in outs]
    return [stage for stage, out in near if path in out.parents or out in path.parents]


def _files(registry: Registry, run_id: str) -> dict[str, Any]:
    names = registry.artifacts(run_id)
    parsed: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(names & {"dvc.lock", "params.yaml", "images.lock"}):
            path = registry.fetch(run_id, name, Path(folder))
            parsed[name] = lock_stages(path) if name == "dvc.lock" else read_mapping(path)
    return parsed


def _data(stages: Mapping[str, Any]) -> dict[str, str]:
    """md5 of what came from outside the project, and of what ingest made of it."""
    entry = stages.get("ingest", {})
    items = [*entry.get("deps", []), *entry.get("outs", [])]
    return {item["path"]: item["md5"] for item in items if "md5" in item and not item["path"].startswith("steps/")}


def _stages(registry: Registry, pipeline: str | None, stages: Mapping[str, Any]) -> dict[str, Any]:
    """Per stage: md5s of its outputs, the run that made them, and that run's image where it is known."""
    runs = _stage_runs(registry, pipeline) if pipeline else {}
    by_stage: dict[str, Any] = {}
    for stage, entry in stages.items():
        record: dict[str, Any] = {"outs": {out["path"]: out.get("md5") for out in entry.get("outs", [])}}
        if run := runs.get(stage):
            record["run"] = run.data.tags.get(f"{PREFIX}made_by", str(run.info.run_id))
            images = {key: value for key, value in run.data.tags.items() if key.startswith(f"{PREFIX}image")}
            record |= {"image": images} if images else {}
        by_stage[stage] = record
    return by_stage


def _stage_runs(registry: Registry, pipeline: str) -> dict[str, Any]:
    if (parent := registry.run(pipeline)) is None:
        return {}
    condition = f"tags.`mlflow.parentRunId` = '{pipeline}'"
    newest_first = found_runs(registry.api, parent.info.experiment_id, condition)
    staged = {run.data.tags.get(f"{PREFIX}stage"): run for run in reversed([*newest_first])}
    return {stage: run for stage, run in staged.items() if stage}


def check_evaluation(reports: Path, ingest: Path) -> Stages:
    """The stages of dvc.lock; UserError when data or reports, which a student is chosen by, are not what it records."""
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
    """The origin of a student's release; UserError when that is not what dvc.lock records, with these `stages`."""
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
