"""Command of the stage: `python -m steps.generate`."""

from pathlib import Path

from steps.frame.stage import stage_main
from steps.generate.params import GenerateParams
from steps.tracking.runs import Run


def body(params: GenerateParams, run: Run) -> None:
    """Generate queries from the tables of ingest."""
    from steps.generate.run import run as generate

    generate(ingest=Path("data/ingest"), output=Path("data/generate"), params=params, run=run)


if __name__ == "__main__":
    stage_main("generate", GenerateParams, body)
