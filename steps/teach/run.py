"""Stage `teach`: one teacher, made as its kind is."""

import importlib
from pathlib import Path

from steps.teach.kinds.base import EARLIER, TOWERS, Inputs, Teacher, list_towers
from steps.tracking.runs import Run
from steps.training.distributed import rank


def run(ingest: Path, mine: Path, output: Path, params: Teacher, run: Run, rankers: Path = Path("data/rank")) -> None:
    """Write `output/tower`, `output/report.json`, which names its `kind`, and `output/earlier`, what it was before."""
    importlib.import_module(f"steps.teach.{params.kind}").teach(Inputs(ingest, mine, rankers), output, params, run)
    if rank() == 0 and not (output / EARLIER / TOWERS).is_file():
        list_towers(output, [])
