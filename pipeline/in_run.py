"""python -m pipeline.in_run RECIPE MODULE WORD...: `python -m MODULE WORD...` in the run of a recipe, "" = here."""

import os
import sys
from pathlib import Path

from pipeline.recipe import run, run_environment, run_folder
from steps.core.errors import UserError, guarded


def main() -> None:
    """Run the module where the recipe's run left its files; its exit code is ours."""
    if len(sys.argv) < 3:
        raise UserError(f"usage: {(__doc__ or '').split(':')[0]}")
    recipe, module, *words = sys.argv[1:]
    folder, environment = Path(), dict(os.environ)
    if recipe:
        folder, environment = run_folder(Path(), Path(recipe)), run_environment(Path(recipe))
        if not folder.is_dir():
            raise UserError(f"{folder}: {recipe} was not run here; run `make run RECIPE={recipe}` first")
    raise SystemExit(run([sys.executable, "-m", module, *words], folder, environment))


if __name__ == "__main__":
    guarded(main)
