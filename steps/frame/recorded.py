"""What DVC records of a stage as that which its outputs were made of; it reads it when the stage has ended."""

import re
from pathlib import Path
from typing import Any

from slimtower.common.files import sha256_file
from slimtower.common.settings import read_mapping

_PIPELINE, _PARAMS = Path("dvc.yaml"), "params.yaml"
_OUTPUTS = ("data/", "models/")  # what stages write, and DVC keeps others from writing meanwhile
_OPEN = re.compile(r"\$\{(?P<name>(?P<first>\w+)[\w.]*)\}")


def recorded_inputs(stage: str, cell: str | None) -> dict[str, Any]:
    """Params, code and locks of a stage, or one cell of it, by what dvc.yaml calls them; of the stages' outputs none.

    {} in a folder whose dvc.yaml, if there is one, knows no such stage: nothing records there.
    """
    entry = _read_yaml(_PIPELINE).get("stages", {}).get(stage, {})
    of_cell = _of_cell(entry, cell)
    entry = entry.get("do", entry)
    inputs: dict[str, Any] = {}
    for param in entry.get("params", []):
        for file, keys in (param if isinstance(param, dict) else {_PARAMS: [param]}).items():
            values = _read_yaml(Path(file))
            for key in (_filled(key, of_cell, values) for key in keys):
                inputs[f"{file}: {key}"] = _value(values, key)
    params = _read_yaml(Path(_PARAMS))
    for path in (_filled(dep, of_cell, params) for dep in entry.get("deps", [])):
        if not path.startswith(_OUTPUTS):
            inputs[path] = _digest(Path(path))
    return inputs


def _of_cell(entry: dict[str, Any], cell: str | None) -> dict[str, Any]:
    """What a cell of `matrix` or `foreach` is given, by the names under which dvc.yaml uses it."""
    if "matrix" in entry:
        return {"item": dict.fromkeys(entry["matrix"], cell)}
    listed = entry.get("foreach")
    return {"key": cell, "item": listed.get(cell) if isinstance(listed, dict) else cell}


def _read_yaml(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.is_file() else {}


def _filled(text: str, of_cell: dict[str, Any], params: dict[str, Any]) -> str:
    """The text with what dvc.yaml leaves open: what a cell is given, and values of params.yaml."""
    return _OPEN.sub(lambda match: str(_value(of_cell if match["first"] in of_cell else params, match["name"])), text)


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _digest(path: Path) -> Any:
    """Of a file, or of all files of a folder as .dvcignore leaves them; None if there is none."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        return {str(file): sha256_file(file) for file in files}
    return sha256_file(path) if path.is_file() else None
