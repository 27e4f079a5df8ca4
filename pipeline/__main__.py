"""python -m pipeline [stages]: one run of the whole pipeline, or of what the named stages need."""

import sys

from pipeline import surroundings
from slimtower.common.errors import guarded


def main() -> None:
    """Set what libraries read when they are imported, then run; `--help` runs nothing."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    surroundings.settle()
    from pipeline.run import main as run

    run()


if __name__ == "__main__":
    guarded(main)
