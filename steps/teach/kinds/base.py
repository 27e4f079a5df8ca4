"""What every teacher has as knobs in params.yaml, and what it is made of."""

from pathlib import Path
from typing import ClassVar, NamedTuple

from slimtower.common.settings import Strict


class Teacher(Strict):
    """Base of all kinds. A subclass in a module of this package is known by its `kind` in params.yaml.

    `steps/teach/<kind>.py` makes it: `teach(inputs, output, params, run)` writes `output/tower` and
    `output/report.json`, which names the kind. It may leave towers that it was before as well,
    `output/earlier/<name>`, for `evaluate` to compare it with: `steps.teach.earlier` lists them.
    """

    makes_index: ClassVar[bool] = True  # whether it gives a text one vector, so that its documents can be an index

    trains_in_processes: ClassVar[bool] = False  # whether several train it together; of these rank 0 alone may write

    kind: str
    """What the teacher is."""


class Inputs(NamedTuple):
    """Folders that a teacher is made of: tables of `ingest`, triplets of `mine`, and a folder for each ranker."""

    ingest: Path
    mine: Path
    rankers: Path
