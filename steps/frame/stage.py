"""How a stage starts: params checked, run tracked, user errors as one line."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from slimtower.common.errors import UserError, guarded
from slimtower.common.settings import Section, load_section
from steps.core.progress import bold, clock
from steps.frame.exit_file import record_exit
from steps.frame.recorded import recorded_inputs
from steps.frame.self_check import require_cuda, step_parser
from steps.tracking.runs import Run
from steps.tracking.stage_run import stage_run

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
        started = time.monotonic()
        with record_exit():
            require_cuda()
            before, params = recorded_inputs(stage, cell), load_section(stage, model)
            with stage_run(name, params.model_dump()) as run:
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
