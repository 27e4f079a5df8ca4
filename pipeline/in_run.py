"""python -m pipeline.in_run RECIPE MODULE WORD...: `python -m MODULE WORD...` in the run of a recipe, "" = here."""

import os
import sys
from pathlib import Path

from pipeline.recipe import run, run_environment
from slimtower.common.errors import UserError, guarded
from slimtower.serving.choice import run_root


def main() -> None:
    """Run the module where the recipe's run left its files; its exit code is ours."""
    if len(sys.argv) < 3:
        raise UserError(f"usage: {(__doc__ or '').split(':')[0]}")
    recipe, module, *words = sys.argv[1:]
    environment = run_environment(Path(recipe)) if recipe else dict(os.environ)
    raise SystemExit(run([sys.executable, "-m", module, *words], run_root(recipe), environment))


if __name__ == "__main__":
    guarded(main)
