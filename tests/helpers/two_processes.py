"""Started twice by torchrun: trains the tiny teacher and the tiny students of a folder, as one of two processes."""

import sys
from pathlib import Path

from scoring_teachers import joint
from stages import distill_params, run_distill
from teach_fakes import EVERYTHING, PARAMS

from steps.distill.params import DistillParams
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun
from steps.training.distributed import join_processes

STUDENTS = ("static", "2l", "ranked", "fresh", "layered", "joint", "joint_late", "joint_cross")


def teachers(world: Path) -> list[tuple[DualEncoder, Path, Path]]:
    """Params of each teacher, the folder of its ingest and mine, and the one below which it is written."""
    clicked = world / "clicked"
    chosen = ((PARAMS, world, world), (EVERYTHING, world, world / "everything"), (PARAMS, clicked, clicked))
    base = {"base": str(world / "model/tower")}
    return [(params.model_copy(update=base), data, folder) for params, data, folder in chosen]


def student_params() -> DistillParams:
    """The tiny distillation, with students that teachers of scores train along with."""
    both = {f"joint_{name}": joint(name, learning_rate=1e-4) for name in ("late", "cross")}
    return distill_params(student=distill_params().model_dump()["student"] | both)


def main(teacher_world: Path, student_world: Path) -> None:
    """Write `teacher_world/two`, and below `everything` and `clicked`, and the students below `student_world`."""
    with join_processes():
        for params, data, folder in teachers(teacher_world):
            teach(data / "ingest", data / "mine", folder / "two", params, NullRun())
        for student in STUDENTS:
            run_distill(student_world, student, student_params())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
