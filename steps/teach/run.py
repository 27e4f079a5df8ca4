"""Stage `teach`: one teacher, made as its kind is."""

from pathlib import Path

from steps.core.tracking import Run
from steps.teach.kinds.base import Teacher


def run(ingest: Path, mine: Path, output: Path, params: Teacher, run: Run) -> None:
    """Write what a teacher leaves: `output/tower`, and `output/report.json`, which names its `kind`."""
    params.teach(ingest, mine, output, run)
