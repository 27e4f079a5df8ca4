"""Stage `teach`: one teacher, made as its kind is."""

import importlib
from pathlib import Path

from steps.teach.earlier_towers import FOLDER, LIST, list_towers
from steps.teach.kinds.base import Inputs, Teacher
from steps.tracking.runs import Run
from steps.training.distributed import rank


def run(ingest: Path, mine: Path, output: Path, params: Teacher, run: Run, rankers: Path = Path("data/rank")) -> None:
    """Write what a teacher leaves: `output/tower`, `output/report.json`, which names its `kind`, and `output/earlier`.

    The last has the towers that it was before, and their names as `towers.json`; of most kinds there are none. Below
    `rankers` lies a folder of each ranker of the run.
    """
    importlib.import_module(f"steps.teach.{params.kind}").teach(Inputs(ingest, mine, rankers), output, params, run)
    if rank() == 0 and not (output / FOLDER / LIST).is_file():
        list_towers(output, [])
