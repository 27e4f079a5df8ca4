"""Started twice by torchrun: trains the tiny teacher and the tiny students of a folder, as one of two processes."""

import sys
from pathlib import Path

from stages import distill_params, run_distill
from teach_fakes import EVERYTHING, PARAMS

from steps.core.tracking import NullRun
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.run import run as teach
from steps.training.distributed import joined

STUDENTS = ("static", "2l", "ranked", "fresh", "layered", "joint")


def teachers(world: Path) -> list[tuple[DualEncoder, Path, Path]]:
    """Params of each teacher, the triplets that it is trained on, and the folder below which it is written."""
    chosen = ((PARAMS, "mine", world), (EVERYTHING, "weighted/mine", world / "everything"))
    base = {"base": str(world / "model/tower")}
    return [(given.model_copy(update=base), world / mine, folder) for given, mine, folder in chosen]


def main(teacher_world: Path, student_world: Path) -> None:
    """Write `teacher_world/two`, and below `everything`, and the students below `student_world`."""
    with joined():
        for given, mine, folder in teachers(teacher_world):
            teach(teacher_world / "ingest", mine, folder / "two", given, NullRun())
        for student in STUDENTS:
            run_distill(student_world, student, distill_params())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
