"""`python -m steps.mine`: data/ingest to data/mine."""

from pathlib import Path

from steps.core.params import Params
from steps.core.stage import stage_main
from steps.core.tracking import Run


def body(params: Params, run: Run) -> None:
    """Run the stage on the project's folders."""
    from steps.mine.run import run as mine

    mine(ingest=Path("data/ingest"), output=Path("data/mine"), params=params.mine, run=run)


if __name__ == "__main__":
    stage_main("mine", body)
