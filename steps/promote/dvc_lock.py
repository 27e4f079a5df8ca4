"""dvc.lock: what each stage was made from and what it made, and whether the files on disk are those that it records."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping

Stages = dict[str, dict[str, Any]]


def lock_stages(path: Path = Path("dvc.lock")) -> Stages:
    """Stages of dvc.lock with command, dependencies, params and outputs; none without a lock, UserError if damaged."""
    stages: Stages = read_mapping(path).get("stages", {}) if path.is_file() else {}
    return stages


def outputs(entry: dict[str, Any]) -> list[Path]:
    """Paths of the outputs of a stage of dvc.lock."""
    return [Path(out["path"]) for out in entry.get("outs", [])]


def dependencies(entry: dict[str, Any]) -> list[Path]:
    """Paths that a stage of dvc.lock depends on."""
    return [Path(dep["path"]) for dep in entry.get("deps", [])]


def dump_lock(stages: Stages) -> bytes:
    """Stages as a dvc.lock."""
    return yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False, allow_unicode=True).encode()


REMEDY = "run `dvc repro` (or `make demo`) first: what is promoted must be what the pipeline made"


def check_recorded(stages: Stages, stage: str, path: Path) -> str:
    """The md5 of an output, after it was found equal on disk and in dvc.lock; UserError when they differ."""
    items = {item["path"]: item.get("md5") for item in stages.get(stage, {}).get("outs", [])}
    recorded = items.get(path.as_posix())
    if recorded is None:
        raise UserError(f"dvc.lock: stage {stage} does not record {path}; {REMEDY}")
    if not path.exists() or dvc_md5(path) != recorded:
        raise UserError(f"{path} is missing, or does not match dvc.lock ({stage}); {REMEDY}")
    return str(recorded)


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
