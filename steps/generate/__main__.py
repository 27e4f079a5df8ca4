"""Command of the stage: `python -m steps.generate`."""

from pathlib import Path

from steps.core.params import Params
from steps.core.stage import stage_main
from steps.core.tracking import Run


def body(params: Params, run: Run) -> None:
    """Generate queries from the tables of ingest."""
    from steps.generate.run import run as generate

    generate(ingest=Path("data/ingest"), output=Path("data/generate"), params=params.generate, run=run)


if __name__ == "__main__":
    stage_main("generate", body)
