"""How a stage starts and ends: params checked, run tracked, user errors as one line, inputs as DVC records them."""

import importlib
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError, guarded
from slimtower.common.files import sha256_file
from slimtower.common.imports import uncollected_imports
from slimtower.common.settings import Section, load_section, read_mapping
from steps.core.params import nested_value
from steps.core.progress import bold, clock
from steps.frame.exit_file import record_exit
from steps.frame.self_check import require_cuda, step_parser
from steps.tracking.runs import Run
from steps.tracking.stage_run import stage_run

_IGNORED = re.compile(r"__pycache__|/\.#[^/]*$|/\.[^/]*\.sw.$|~$|/\.DS_Store$")  # as in .dvcignore: what editors leave
_SETTINGS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "JAX_PLATFORMS": "cpu",  # bm25s loads jax where it is installed, which would take most of a GPU's memory
}  # of libraries that are imported later


def stage_main(stage: str, model: type[Section], body: Callable[[Section, Run], None], cell: str | None = None) -> None:
    """Run a stage, or one cell of its matrix, on its section of params.yaml inside its tracked run.

    `model` is the section's type; `body` calls what steps/<stage>/run.py defines. `--self-check` only checks.
    """
    step_parser(stage, None).parse_known_args()  # the cell's own option has been read before

    def command() -> None:
        name = f"{stage}@{cell}" if cell else stage
        for variable, value in _SETTINGS.items():
            os.environ.setdefault(variable, value)
        started = time.monotonic()
        with record_exit(), ExitStack() as context:
            with uncollected_imports():
                require_cuda()
                before, params = recorded_inputs(stage, cell), load_section(stage, model)
                run = context.enter_context(stage_run(name, params.model_dump()))
                importlib.import_module(f"steps.{stage}.run")
            body(params, run)
            _check_unchanged(name, before, recorded_inputs(stage, cell))
        seconds = time.monotonic() - started
        print(bold(f"{name}: done in {clock(seconds)}", sys.stderr), file=sys.stderr)

    guarded(command)


def _check_unchanged(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """UserError if params or code changed meanwhile: DVC would record the new ones with what was made."""
    if changed := sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
        raise UserError(
            f"{name}: {', '.join(changed)} changed while it ran, so what it made is not recorded: it would pass for the"
            " new one's; run it again"
        )


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
                inputs[f"{file}: {key}"] = nested_value(values, *key.split("."))
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

    def value(match: re.Match[str]) -> str:
        values = of_cell if match["first"] in of_cell else params
        return str(nested_value(values, *match["name"].split(".")))

    return _OPEN.sub(value, text)


def _digest(path: Path) -> Any:
    """Of a file, or of all files of a folder as .dvcignore leaves them; None if there is none."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _IGNORED.search(str(file)))
        return {str(file): sha256_file(file) for file in files}
    return sha256_file(path) if path.is_file() else None
