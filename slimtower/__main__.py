"""The command `slimtower`: search, serve and deploy releases; promote them and run the pipeline in a checkout."""

import importlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError, guarded


class _Command(NamedTuple):
    """A command of the library: what it does, the module whose `main(words)` does it, the extra that it needs."""

    about: str
    module: str
    extra: str = ""


_COMMANDS = {
    "search": _Command("top hits of a release", "slimtower.search"),
    "serve": _Command("search page and API over HTTP", "slimtower.service.command", "serve"),
    "deploy": _Command("bring the champion to where it serves", "slimtower.engines.command", "registry,engines"),
}
_IN_CHECKOUT = {  # commands of the pipeline, which is no part of what is installed
    "promote": ("make a release the champion if it is no worse; its history", ["steps.promote"]),
    "rollback": ("make the champion of before the champion again", ["steps.promote", "--rollback"]),
    "run": ("the pipeline, or a recipe: run [stages | recipes/x.yaml DATA=folder]", ["pipeline"]),
}


def main() -> None:
    """Hand the rest of the command line to what its first word names."""
    guarded(_main)


def _main() -> None:
    name, words = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if name in _COMMANDS:
        _command(name, words)
    elif name in _IN_CHECKOUT:
        _run_in_checkout(name, words)
    elif name in ("-h", "--help"):
        print("usage: slimtower COMMAND ...  (--help of a command lists its options)\n")
        print("\n".join(f"  {name:<9} {command.about}" for name, command in _COMMANDS.items()))
        print("\nin a checkout of the project:\n")
        print("\n".join(f"  {name:<9} {about}" for name, (about, _) in _IN_CHECKOUT.items()))
    else:
        raise UserError(f"there is no command {name!r}; choose one of {', '.join([*_COMMANDS, *_IN_CHECKOUT])}")


def _command(name: str, words: list[str]) -> None:
    command = _COMMANDS[name]
    try:
        importlib.import_module(command.module).main(words)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not command.extra or package in ("", "slimtower"):
            raise
        raise UserError(f"{name}: needs {package}; `pip install 'slimtower[{command.extra}]'`") from None


def _run_in_checkout(name: str, words: list[str]) -> None:
    if not Path("pipeline/__main__.py").is_file():
        raise UserError(f"{name}: {Path.cwd()} is no checkout of the project; change into one")
    module, *options = _IN_CHECKOUT[name][1]
    if name == "run" and words and words[0].endswith(".yaml"):
        module = "pipeline.recipe"
    os.execv(sys.executable, [sys.executable, "-m", module, *options, *words])


if __name__ == "__main__":
    main()
