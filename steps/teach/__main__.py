"""Command of the stage: `python -m steps.teach`."""

from pathlib import Path

from steps.core.torchrun import shared_stage_main
from steps.core.tracking import Run
from steps.teach.params import TeachParams


def body(params: TeachParams, run: Run) -> None:
    """Train the teacher on the tables of ingest and mine."""
    from steps.teach.run import run as teach

    teach(
        ingest=Path("data/ingest"),
        mine=Path("data/mine/relevance"),
        output=Path("models/teach"),
        params=params,
        run=run,
    )


if __name__ == "__main__":
    shared_stage_main("teach", TeachParams, body)
