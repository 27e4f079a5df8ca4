"""Started twice by torchrun: trains the tiny teacher and the tiny students of a folder, as one of two processes."""

import sys
from pathlib import Path

from stages import distill_params, run_distill
from teach_fakes import EVERYTHING, PARAMS

from steps.core.tracking import NullRun
from steps.teach.run import run as teach
from steps.training.distributed import joined

STUDENTS = ("static", "2l", "ranked", "fresh", "layered", "joint")


def main(teacher_world: Path, student_world: Path) -> None:
    """Write `teacher_world/two`, and below `everything`, and the students below `student_world`."""
    with joined():
        for given, folder in ((PARAMS, teacher_world), (EVERYTHING, teacher_world / "everything")):
            params = given.model_copy(update={"base": str(teacher_world / "model/tower")})
            teach(teacher_world / "ingest", teacher_world / "mine", folder / "two", params, NullRun())
        for student in STUDENTS:
            run_distill(student_world, student, distill_params())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
