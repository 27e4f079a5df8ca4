"""What DVC records of a stage as that which its outputs were made of; it reads it when the stage has ended."""

import re
from pathlib import Path
from typing import Any

from steps.core.files import sha256_file
from steps.core.params import read_mapping

_PIPELINE, _PARAMS = Path("dvc.yaml"), "params.yaml"
_MADE = ("data/", "models/")  # what stages write, and DVC keeps others from writing meanwhile
_CELL = re.compile(r"\$\{(?:item(?:\.\w+)?|key)\}")
_PARAM = re.compile(r"\$\{([\w.]+)\}")


def recorded_inputs(stage: str, cell: str | None) -> dict[str, Any]:
    """Params, code and locks of a stage, or one cell of it, by what dvc.yaml calls them; of the stages' outputs none.

    {} in a folder whose dvc.yaml, if there is one, knows no such stage: nothing records there.
    """
    entry = _read(_PIPELINE).get("stages", {}).get(stage, {})
    entry = entry.get("do", entry)
    found: dict[str, Any] = {}
    for given in entry.get("params", []):
        for file, keys in (given if isinstance(given, dict) else {_PARAMS: [given]}).items():
            values = _read(Path(file))
            for key in (_filled(key, cell, values) for key in keys):
                found[f"{file}: {key}"] = _value(values, key)
    params = _read(Path(_PARAMS))
    for path in (_filled(dep, cell, params) for dep in entry.get("deps", [])):
        if not path.startswith(_MADE):
            found[path] = _digest(Path(path))
    return found


def _read(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.is_file() else {}


def _filled(text: str, cell: str | None, params: dict[str, Any]) -> str:
    """The text with what dvc.yaml leaves open: a cell's name, and values of params.yaml."""
    return _PARAM.sub(lambda match: str(_value(params, match[1])), _CELL.sub(cell or "", text))


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _digest(path: Path) -> Any:
    """Of a file, or of all files of a folder as .dvcignore leaves them; None where there is none."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        return {str(file): sha256_file(file) for file in files}
    return sha256_file(path) if path.is_file() else None
