"""`python -m pipeline.task WHAT`: a scheduled run's begin, stage of dvc.yaml, publish, promote, deploy or rollback.

Tasks share nothing but the remote (run_store.py says what lies there) and an MLflow server. Each clones the project at
the commit that `begin` fixed and exits with 0 done, 99 nothing to do, 3 wrong data or settings, 75 try again, 137
killed or out of memory, 1 a defect. docs/operations.md lists the environment.
"""

import argparse
import errno
import os
import sys
import time

from pipeline.stopping import stop_when_asked
from pipeline.task.begin import begin
from pipeline.task.promote import deploy, promote, rollback
from pipeline.task.publish import publish
from pipeline.task.run import TaskRun
from pipeline.task.stage import run_stage
from slimtower.common.errors import EXIT_NOTHING, TransientError, UserError, exhausted, guarded, line

_PASSING = {errno.EAGAIN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}  # of folders on a network, most of them
_TASKS = {"begin": begin, "publish": publish, "promote": promote, "deploy": deploy, "rollback": rollback}


def main() -> None:
    """Do what the command line says; exits with the code of the task."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.task", description=__doc__)
    parser.add_argument("what", help=f"{', '.join(_TASKS)}, or a stage's address as DVC has it, such as distill@2l")
    task = parser.parse_args().what
    stop_when_asked()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    run = TaskRun.from_environment()
    started = time.perf_counter()
    try:
        code = _TASKS[task](run) if task in _TASKS else run_stage(run, task)
    except OSError as error:
        raise as_user_error(task, error) from error
    word = {0: "done", EXIT_NOTHING: "nothing to do"}.get(code, f"ended with code {code}")
    print(f"task {task}: {word}; {time.perf_counter() - started:.0f} s", file=sys.stderr)
    raise SystemExit(code)


def as_user_error(task: str, error: OSError) -> UserError:
    """The error of ours that an OSError of a task amounts to."""
    if user_error := exhausted(error):
        return user_error
    kind = TransientError if error.errno in _PASSING else UserError
    return kind(f"{task}: {line(error)}; look at SLIMTOWER_REMOTE and SLIMTOWER_WORK")


if __name__ == "__main__":
    guarded(main)
