"""What a teacher is: its knobs in params.yaml, and how it is made."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from slimtower.common.settings import Strict
from steps.tracking.runs import Run


class Teacher(Strict, ABC):
    """Base of all kinds. A subclass in a module of this package is known by its `kind` in params.yaml.

    Params are read without torch: what trains is imported in `teach`.
    """

    makes_index: ClassVar[bool] = True  # whether it gives a text one vector, so that its documents can be an index

    trains_in_processes: ClassVar[bool] = False  # whether several train it together; of these rank 0 alone may write

    kind: str
    """What the teacher is."""

    @abstractmethod
    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Write what the teacher leaves: `output/tower` and `output/report.json`, which names its `kind`.

        Below `rankers` lies a folder of each ranker of the run. It may leave towers that it was before as well,
        `output/earlier/<name>`, for `evaluate` to compare it with: `steps.teach.earlier` lists them.
        """
