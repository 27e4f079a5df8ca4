"""dvc.lock: what each stage was made from, and what it made."""

from pathlib import Path
from typing import Any

import yaml

from slimtower.common.settings import read_mapping

Stages = dict[str, dict[str, Any]]


def lock_stages(path: Path = Path("dvc.lock")) -> Stages:
    """Stages of dvc.lock with their command, dependencies, params and outputs; none when there is no lock yet.

    UserError for a file that is none, as one with the marks of a merge is.
    """
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
