"""Trainings that a test kills: they run in processes of their own, and save a checkpoint at every step."""

import os
from pathlib import Path

from scoring_teachers import joint
from stages import STATIC, distill_params, run_distill
from teach_fakes import PARAMS

import steps.distill.checkpoints as checkpoints
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun
from steps.training import library_trainer


def train_teacher(world: Path, cache: Path, output: Path, more: int = 0) -> None:
    """Train the teacher of a world, with dropout, so that random numbers matter, and as many more rounds."""
    os.environ["SLIMTOWER_CACHE"] = str(cache)
    library_trainer.DROPOUT = 0.1
    base = str(world / "model/tower")
    params = PARAMS.model_copy(update={"base": base, "checkpoint_steps": 1, "dev_queries": 0})
    rounds = params.rounds.model_copy(update={"more": more, "skip": 2, "depth": 20})
    params = params.model_copy(update={"rounds": rounds})
    teach(world / "ingest", world / "mine", output, params, NullRun())


def train_student(root: Path, cache: Path, student: str) -> None:
    """Distil one student of a folder; its last training is long enough to be killed three times.

    `converged` is `static` with epochs: auto; with `joint_late` and `joint_cross` such a teacher trains along.
    """
    os.environ["SLIMTOWER_CACHE"] = str(cache)
    checkpoints.CHECKPOINT_SECONDS = 0.0
    if student == "converged":
        knobs = STATIC | {"epochs": "auto", "batch_size": 16, "learning_rate": 0.01}
    elif student.startswith("joint_"):
        knobs = joint(student.partition("_")[2], epochs=5.0)
    else:
        knobs = distill_params().student[student].model_dump(exclude_unset=True)
        knobs.get("then", [knobs])[-1]["epochs"] = 5.0
    limits = {"min_steps": 16, "max_steps": 200, "min_gain": 0.1}
    described = {"static": STATIC, student: knobs}  # students that a run names cannot be symmetric, this one may
    run_distill(root, student, distill_params(students=["static"], student=described, convergence=limits))
