"""A task for one stage: what is there already is not made again, what is made is pushed and told to the others."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from pipeline.images import check_image
from pipeline.task.children import Ended
from pipeline.task.run import TaskRun
from pipeline.task.workspace import PARAMS, Workspace, is_passing, is_refused
from slimtower.common.errors import EXIT_BUG, EXIT_KILLED, EXIT_NOTHING, FULL_DISK, TransientError, UserError, line
from slimtower.common.s3 import advice
from slimtower.registry.client import client
from steps.encoders.bases import OWN_TEACHER
from steps.frame.exit_file import VARIABLE, read_exit
from steps.promote.dvc_lock import Stages

_WAITS = (10, 60, 300)  # seconds before a push is tried again: what it stores took hours


class StageFailed(UserError):
    """A stage that failed, with the code that it recorded."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


def run_stage(run: TaskRun, stage: str) -> int:
    """Bring one stage up to date; 99 when it is. Raises what the stage ended with."""
    record = run.must_have_begun()
    names = record["stages"]
    if stage not in names:
        raise UserError(f"{stage!r} is no stage of dvc.yaml at this run's commit; there are {', '.join(names)}")
    with _marked_failed(record["parent_run"]), run.workspace(record["commit"]) as clone:
        base, fragments = run.lay_out(clone)
        check_image(stage.partition("@")[0], clone.folder)
        before = clone.lock()
        clone.fetch_beside(stage)
        if not _outputs_changed(base, fragments) and not clone.has_work(stage):
            return EXIT_NOTHING
        fetched = clone.fetch_inputs(stage)
        for teacher in other_teachers(yaml.safe_load(clone.read(PARAMS)), stage):
            fetched += clone.fetch_output(teacher)
        if fetched:
            print(f"{stage}: fetched {', '.join(fetched)}", flush=True)
        _reproduce(run, clone, stage, record)
        after = clone.lock()
        changed = {name: after[name] for name in names if name in after and after[name] != before.get(name)}
        if not changed:
            return EXIT_NOTHING
        _push(clone, list(changed))
        run.store.write(f"runs/{run.name}/locks/{stage}.yaml", yaml.safe_dump(changed, sort_keys=False).encode())
    return 0


def other_teachers(params: dict[str, Any], stage: str) -> list[Path]:
    """Folders of this run's teachers that a student needs besides the index's, all of which `score` has waited for.

    In one its encoder begins, one trains along, and the maps of one are compared. They are no dependencies in dvc.yaml:
    most students have no teacher but the index's.
    """
    name, _, student = stage.partition("@")
    described = params["distill"]["student"].get(student, {}) if name == "distill" else {}
    start = described.get("start", {})
    origin = str(start.get("adapter") or start.get("base") or "")
    needed = [Path(origin)] if OWN_TEACHER.match(origin) else []
    for phase in [described, *described.get("then", [])]:
        for loss in phase.get("losses", []):
            trains_along = phase.get("targets") == "joint"
            if loss.get("teacher") and (trains_along or loss["kind"] == "attention"):
                needed.append(Path("models/teach") / loss["teacher"])
    return sorted(set(needed))


def _outputs_changed(base: Stages, fragments: dict[str, Stages]) -> bool:
    """Tell whether this run made anything that differs from what it started with."""
    return any(
        entry["outs"] != base.get(name, {}).get("outs")
        for fragment in fragments.values()
        for name, entry in fragment.items()
    )


def _reproduce(run: TaskRun, clone: Workspace, stage: str, record: dict[str, Any]) -> None:
    """`dvc repro` of a stage, whose runs go to this run's MLflow parent."""
    variables = {
        VARIABLE: str(clone.exit_file),
        "SLIMTOWER_PARENT_RUN": record["parent_run"],
        "SLIMTOWER_GIT_COMMIT": record["commit"],  # the clone's own params.yaml and dvc.lock make it look changed
    }
    ended = clone.python("dvc", "repro", stage, "--pull", "--allow-missing", **variables)
    if ended.code:
        raise _failure(run, clone.exit_file, stage, ended)


@contextmanager
def _marked_failed(parent: str) -> Iterator[None]:
    """Close the MLflow run as failed when the block fails; after a better try `publish` closes it as finished."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # what went wrong first is what is told
            client().set_terminated(parent, "FAILED")
        raise


def _push(clone: Workspace, stages: list[str]) -> None:
    """Push outputs and the run cache, again after a while where the network or the server failed."""
    for wait in _WAITS:
        try:
            clone.dvc("push", "--run-cache", *stages)
        except TransientError as error:
            print(f"{line(error)}; next try in {wait} s", file=sys.stderr, flush=True)
            time.sleep(wait)
        else:
            return
    clone.dvc("push", "--run-cache", *stages)


def _failure(run: TaskRun, exit_file: Path, stage: str, ended: Ended) -> UserError:
    """Why a stage failed: what it recorded itself, else a signal, the disk, the remote, DVC."""
    recorded = read_exit(exit_file)
    if recorded and recorded[0]:
        return StageFailed(f"{stage}: {recorded[1]}", recorded[0])
    if ended.code < 0:
        return StageFailed(f"{stage}: killed by signal {-ended.code}, most likely for its memory", EXIT_KILLED)
    if FULL_DISK in ended.stderr:
        return TransientError(f"{stage}: full disk: {ended.line()}; free some space, then run again")
    run.store.names("locks/latest")  # raises where the remote refuses or cannot be reached
    complaints = "\n".join(ended.complaints())  # without what the stage said, which has ended well or never began
    if is_refused(complaints):
        remedy = advice(complaints, "look at SLIMTOWER_REMOTE and what may be done there")
        return UserError(f"{stage}: {ended.line()}; {remedy}")
    if is_passing(complaints):
        return TransientError(f"{stage}: {ended.line()}; look at SLIMTOWER_REMOTE, then run again")
    return StageFailed(f"{stage}: {ended.line()}", EXIT_BUG)
