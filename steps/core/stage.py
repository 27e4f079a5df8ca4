"""How a stage starts: params checked, run tracked, user errors as one line."""

import os
import sys
from collections.abc import Callable

from steps.core.errors import guarded
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
            with stage_run(name, params.model_dump()) as run:
                body(params, run)
        print(f"{name}: done", file=sys.stderr)

    guarded(command)
