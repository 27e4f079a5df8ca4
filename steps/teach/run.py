"""Stage `teach`: one teacher, trained as its kind is."""

from pathlib import Path
from typing import assert_never

from steps.core.tracking import Run
from steps.teach.dual_encoder import teach_dual_encoder
from steps.teach.params import DualEncoderParams, TeacherParams


def run(ingest: Path, mine: Path, output: Path, params: TeacherParams, run: Run) -> None:
    """Write what a teacher leaves: `output/tower`, and `output/report.json`, which names its `kind`."""
    match params:
        case DualEncoderParams():
            teach_dual_encoder(ingest, mine, output, params, run)
        case _:
            assert_never(params)
