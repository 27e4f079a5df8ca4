"""Are the files on disk the ones that dvc.lock records? Lineage is only worth what this check is."""

import hashlib
import json
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.promote.dvc_lock import Stages, outputs

REMEDY = "run `dvc repro` (or `make demo`) first: what is promoted must be what the pipeline made"


def recorded_md5(stages: Stages, stage: str, path: Path, kind: str = "outs") -> str:
    """The md5 that dvc.lock has of an output (or of a dependency, `kind="deps"`); UserError when it has none."""
    items: list[dict[str, Any]] = stages.get(stage, {}).get(kind, [])
    for item in items:
        if item["path"] == path.as_posix() and "md5" in item:
            return str(item["md5"])
    raise UserError(f"dvc.lock: stage {stage} does not record {path}; {REMEDY}")


def check_recorded(stages: Stages, stage: str, path: Path) -> str:
    """The md5 of an output, after it was found equal on disk and in dvc.lock; UserError when they differ."""
    recorded = recorded_md5(stages, stage, path)
    if not path.exists() or dvc_md5(path) != recorded:
        raise UserError(f"{path}: missing or not what dvc.lock records of {stage}; {REMEDY}")
    return recorded


def check_outputs(stages: Stages, stage: str) -> None:
    """UserError unless every output of a stage is on disk as dvc.lock records it."""
    paths = outputs(stages.get(stage, {}))
    if not paths:
        raise UserError(f"dvc.lock: records no output of stage {stage}; {REMEDY}")
    for path in paths:
        check_recorded(stages, stage, path)


def dvc_md5(path: Path) -> str:
    """DVC's md5: of a file its bytes; of a folder the sorted list of its files' md5s and paths, with `.dir` behind."""
    if path.is_file():
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "md5").hexdigest()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    entries = [{"md5": dvc_md5(files[name]), "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"
