"""Promotion, deployment and rollback as tasks: in a clone at the published run's commit, as it was published."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.task.run import BEGIN, TaskRun, digest, lay_files, newer_run, read_json
from pipeline.task.workspace import LOCK, PARAMS, SOURCES, Workspace
from slimtower.common.errors import TransientError, UserError

_NEEDED = {"ingest", "release", "evaluate"}  # stages whose outputs steps.promote and `slimtower deploy` read


def promote(run: TaskRun) -> int:
    """`python -m steps.promote` on what the run SLIMTOWER_RUN published; returns its exit code.

    With SLIMTOWER_ANNOUNCED an event named the run. UserError when locks/latest/ is of one that began later.
    """
    with _published(run) as (clone, record):
        if os.environ.get("SLIMTOWER_ANNOUNCED") and (newer := newer_run(run.store, record)):
            raise UserError(
                f"{run.name} began before {newer}, which is published; promote that, or start `promote` by hand with"
                f" run {run.name}"
            )
        _pull(clone, record)
        return clone.python("steps.promote", **_origin(record)).exit_code


def deploy(run: TaskRun) -> int:
    """`slimtower deploy` to SLIMTOWER_DEPLOY_TO, of the champion if that run released it; its exit code.

    Where the champion has moved on meanwhile, by a rollback for one, nothing is deployed.
    """
    if not (to := os.environ.get("SLIMTOWER_DEPLOY_TO")):
        raise UserError("SLIMTOWER_DEPLOY_TO: not set; give the vector engine, as TO of `make deploy`")
    with _published(run) as (clone, record):
        _pull(clone, record)
        return clone.python("slimtower", "deploy", "--to", to, "--champion").exit_code


def rollback(run: TaskRun) -> int:
    """Exit code of `steps.promote --rollback` with that run's params, once for each SLIMTOWER_AIRFLOW_RUN."""
    with _published(run) as (clone, record):
        return clone.python("steps.promote", "--rollback", **_origin(record)).exit_code


@contextmanager
def _published(run: TaskRun) -> Iterator[tuple[Workspace, dict[str, Any]]]:
    """A clone laid out as a run was published; `latest` is a run too."""
    folder = f"locks/{run.name}"
    if (record := read_json(run.store, f"{folder}/{BEGIN}")) is None:
        raise UserError(f"{run.store.url}/{folder}: nothing was published there; let SLIMTOWER_RUN name a finished run")
    with run.workspace(record["commit"]) as clone:
        lay_files(run.store, folder, clone)
        for key, name in (("params", PARAMS), ("sources", SOURCES), ("lock", LOCK)):
            if record[key] != digest(clone.read(name)):
                raise TransientError(
                    f"{run.store.url}/{folder}: {name} is of another run than {BEGIN}: one is being published, or its"
                    " `publish` was cut short; try again, or run that once more"
                )
        yield clone, record


def _pull(clone: Workspace, record: dict[str, Any]) -> None:
    clone.dvc("pull", *(name for name in record["stages"] if name.partition("@")[0] in _NEEDED))


def _origin(record: dict[str, Any]) -> dict[str, str]:
    """What a version says about where it comes from: the run's commit and its MLflow run."""
    return {"SLIMTOWER_GIT_COMMIT": record["commit"], "SLIMTOWER_PARENT_RUN": record["parent_run"]}
