"""python -m pipeline [stages]: one run of the whole pipeline, or of what the named stages need."""

import sys
from pathlib import Path

from pipeline import surroundings
from slimtower.common.errors import guarded
from slimtower.common.imports import uncollected_imports


def main() -> None:
    """Set what libraries read when they are imported, then run if there is anything to do; `--help` runs nothing."""
    targets = sys.argv[1:]
    if {"-h", "--help"} & set(targets):
        print(__doc__)
        return
    surroundings.settle()
    with uncollected_imports():
        from pipeline.prepare import prepare

    stages, is_up_to_date = prepare(targets, Path.cwd())
    if is_up_to_date:
        print(f"pipeline: nothing to do, {'what was asked for' if targets else 'every stage'} is up to date")
        return
    with uncollected_imports():
        from pipeline.run import run

    raise SystemExit(run(stages, targets))


if __name__ == "__main__":
    guarded(main)
