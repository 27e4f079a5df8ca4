"""The command `slimtower`: search, serve and move releases; run the pipeline in a checkout."""

import importlib
import os
import sys
from pathlib import Path

from steps.core.errors import UserError, guarded

_STEPS = {
    "search": "top hits of a release",
    "serve": "search page and API over HTTP",
    "promote": "make a release the champion if it is no worse; roll back; history",
    "deploy": "bring the champion to where it serves",
}
_EXTRAS = {"serve": "serve", "promote": "registry", "deploy": "registry,engines"}  # what brings the rest
_RUN = "run [stages | recipes/x.yaml DATA=folder]"


def main() -> None:
    """Hand the rest of the command line to what its first word names."""
    guarded(_main)


def _main() -> None:
    name, words = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if name == "run":
        _run(words)
    elif name in _STEPS:
        sys.argv = [f"slimtower {name}", *words]
        try:
            importlib.import_module(f"steps.{name}.__main__").main()
        except ModuleNotFoundError as error:
            lacking = (error.name or "").partition(".")[0]
            if name not in _EXTRAS or lacking in ("", "steps", "slimtower"):
                raise
            raise UserError(f"{name}: needs {lacking}; `pip install 'slimtower[{_EXTRAS[name]}]'`") from None
    elif name in ("-h", "--help"):
        lines = [f"  {step:<9} {text}" for step, text in _STEPS.items()]
        print("\n".join(["usage: slimtower COMMAND ...  (--help of a command lists its options)", "", *lines]))
        print(f"  {_RUN}\n            the pipeline, or a recipe, in a checkout of the project")
    else:
        raise UserError(f"there is no command {name!r}; choose one of {', '.join([*_STEPS, 'run'])}")


def _run(words: list[str]) -> None:
    """Run the checkout's own pipeline: it is no part of what is installed."""
    if not Path("pipeline/__main__.py").is_file():
        raise UserError(f"run: {Path.cwd()} is no checkout of the project; change into one")
    module = "pipeline.recipe" if words and words[0].endswith(".yaml") else "pipeline"
    os.execv(sys.executable, [sys.executable, "-m", module, *words])


if __name__ == "__main__":
    main()
