"""How a stage starts: params checked, run tracked, user errors as one line."""

import os
import sys
from collections.abc import Callable

from steps.core.errors import guarded
from steps.core.exit_file import recorded
from steps.core.params import Params, load_params
from steps.core.self_check import require_cuda, step_parser
from steps.core.tracking import Run, reaching, stage_run

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def stage_main(stage: str, body: Callable[[Params, Run], None], cell: str | None = None) -> None:
    """Run a stage (or one cell of its matrix) on params.yaml inside its tracked run; `--self-check` only checks."""
    step_parser(stage, None).parse_known_args()  # the cell's own option has been read before

    def command() -> None:
        name = f"{stage}@{cell}" if cell else stage
        with recorded():
            require_cuda()
            params = load_params()
            section = getattr(params, stage).model_dump()
            with reaching(), stage_run(name, section) as run:
                body(params, run)
        print(f"{name}: done", file=sys.stderr)

    guarded(command)
