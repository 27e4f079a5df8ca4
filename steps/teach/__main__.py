"""Command of the stage: `python -m steps.teach`."""

from pathlib import Path

from steps.core.params import Params
from steps.core.torchrun import shared_stage_main
from steps.core.tracking import Run


def body(params: Params, run: Run) -> None:
    """Train the teacher on the tables of ingest and mine."""
    from steps.teach.run import run as teach

    teach(
        ingest=Path("data/ingest"),
        mine=Path("data/mine/relevance"),
        output=Path("models/teach"),
        params=params.teach,
        run=run,
    )


if __name__ == "__main__":
    shared_stage_main("teach", body)
