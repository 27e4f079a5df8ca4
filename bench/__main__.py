"""python -m bench [NAME [WORD ...]]: run a benchmark, or list them all."""

import importlib
import pkgutil
import runpy
import sys

import bench
from slimtower.common.errors import UserError, guarded


def benchmarks() -> dict[str, str]:
    """What each benchmark is, by its name: the modules of this folder whose first line says how they are run."""
    abouts = {}
    for module in pkgutil.iter_modules(bench.__path__):
        name = f"bench.{module.name}.__main__" if module.ispkg else f"bench.{module.name}"
        try:
            about = (importlib.import_module(name).__doc__ or "").partition("\n")[0]
        except ModuleNotFoundError:  # a package of parts, or one that needs what is not installed here
            continue
        if about.startswith(f"python -m bench.{module.name}"):
            abouts[module.name] = about.removeprefix(f"python -m bench.{module.name}").strip()
    return abouts


def main() -> None:
    """Run the named benchmark with the words behind its name."""
    if len(sys.argv) < 2:
        for name, about in benchmarks().items():
            usage, _, text = about.partition(": ")
            print(f"{' '.join(filter(None, (name, usage.rstrip(':'))))}\n    {text or about.removeprefix(': ')}")
        return
    name = sys.argv[1].replace("-", "_")
    if not name.isidentifier() or importlib.util.find_spec(f"bench.{name}") is None:
        raise UserError(f"bench: there is no {sys.argv[1]!r}; `make bench` lists what there is")
    del sys.argv[1]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    guarded(main)
