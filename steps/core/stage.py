"""How a stage starts: params checked, run tracked, user errors as one line."""

import os
import sys
from collections.abc import Callable
from typing import Any

from steps.core.code import code_digest
from steps.core.errors import UserError, guarded
from steps.core.exit_file import recorded
from steps.core.params import Section, load_section
from steps.core.self_check import require_cuda, step_parser
from steps.core.stage_run import stage_run
from steps.core.tracking import Run

_SETTINGS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "JAX_PLATFORMS": "cpu",  # bm25s loads jax where it is installed, which would take most of a GPU's memory
}  # of libraries that are imported later


def stage_main(stage: str, model: type[Section], body: Callable[[Section, Run], None], cell: str | None = None) -> None:
    """Run a stage, or one cell of its matrix, on its section of params.yaml inside its tracked run.

    `model` is the section's type. `--self-check` only checks.
    """
    step_parser(stage, None).parse_known_args()  # the cell's own option has been read before

    def command() -> None:
        name = f"{stage}@{cell}" if cell else stage
        for variable, value in _SETTINGS.items():
            os.environ.setdefault(variable, value)
        with recorded():
            require_cuda()
            params = load_section(stage, model)
            began = _knobs(params, cell), code_digest(code := f"steps.{stage}.__main__")
            with stage_run(name, params.model_dump()) as run:
                body(params, run)
                _check_unchanged(name, began, (_knobs(load_section(stage, model), cell), code_digest(code)))
        print(f"{name}: done", file=sys.stderr)

    guarded(command)


def _knobs(params: Section, cell: str | None) -> dict[str, Any]:
    """What a cell reads of its section: not what is said of other cells, by name or in lists of names."""
    found = params.model_dump()
    if cell:
        found = {name: value for name, value in found.items() if not (isinstance(value, list) and cell in value)}
        for name, value in found.items():
            if isinstance(value, dict) and cell in value:
                found[name] = value[cell]
    return found


def _check_unchanged(name: str, before: tuple[dict[str, Any], str], after: tuple[dict[str, Any], str]) -> None:
    """UserError where params.yaml or the code changed meanwhile: DVC would record the new ones with what was made."""
    changed = [what for what, old, new in zip(("params.yaml", "the code"), before, after, strict=True) if old != new]
    if changed:
        raise UserError(
            f"{name}: {' and '.join(changed)} changed while it ran, so what it made is not recorded: it would pass for"
            " the new one's; run it again"
        )
