"""The first task: fix the commit, the params with their window, and the listing of outside data, for all others."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.recipe import laid_over, params_text, variable_names
from pipeline.task.run import BEGIN, LATEST, TaskRun, digest, json_bytes, read_json, same_inputs
from pipeline.task.run_store import RunStore
from pipeline.task.workspace import LOCK, PARAMS, REMOTE, SOURCES, Workspace
from slimtower.common.errors import EXIT_NOTHING, UserError
from slimtower.common.settings import parse_mapping, read_text
from slimtower.registry.client import client, reaching
from steps.promote.dvc_lock import Stages, dump_lock, lock_stages
from steps.tracking.run_ids import pipeline_folder, pipeline_run, run_name
from steps.tracking.runs import experiment_id


def begin(run: TaskRun) -> int:
    """Write the run's folder and open its MLflow run; 99 when nothing is new since the newest finished run.

    A run that has begun stays as it is. UserError when that was with another recipe, window or variables, and for a run
    with the name of the folder where the newest run's state lies.
    """
    if run.name == LATEST:
        raise UserError(f"SLIMTOWER_RUN: locks/{LATEST}/ is the newest run's, whatever its name; give this run another")
    record = run.read_begin()
    if record is not None:
        _check_same(run, record)
    else:
        with run.workspace(os.environ.get("SLIMTOWER_REF") or "HEAD") as clone:
            params = _params(clone)
            clone.write(PARAMS, params)
            listed = clone.python("steps.ingest", "--list")  # checks params.yaml too, and says what is wrong
            if listed.code:
                return listed.exit_code
            commit, sources, names = clone.git("rev-parse", "HEAD"), clone.read(SOURCES), clone.stages()
            variables = _variables(clone)
            _check_graph(names)
            latest = read_json(run.store, f"locks/{LATEST}/{BEGIN}")
            base = _base(run.store, clone, names, latest)
        record = {
            "began": _began(latest),
            "commit": commit,
            "params": digest(params),
            "sources": digest(sources),
            "stages": names,
            "run": run.name,
            "recipe": os.environ.get("SLIMTOWER_RECIPE", ""),
            "window": {"since": os.environ.get("SINCE", ""), "until": os.environ.get("UNTIL", "")},
            "variables": variables,
        }
        record["base_parent"] = latest["parent_run"] if latest else ""
        record["new"] = latest is None or not same_inputs(latest, record) or set(base) != set(names)
        with reaching():
            api = client()
            record["parent_run"] = pipeline_run(
                api, experiment_id(api), run.address, commit, run_name(commit), pipeline_folder()
            )
        files = {PARAMS: params, SOURCES: sources, LOCK: dump_lock(base), BEGIN: json_bytes(record)}
        if earlier := run.read_begin():  # of another deployment, meanwhile
            _check_same(run, earlier)
        for name, content in files.items():  # begin.json last: with it the run has begun
            run.store.write(f"runs/{run.name}/{name}", content)
    print(f"begin: {run.address} at {record['commit'][:12]}, {'new' if record['new'] else 'nothing new'}")
    return 0 if record["new"] else EXIT_NOTHING


def _began(latest: dict[str, Any] | None) -> str:
    """The time, in UTC; later in any case than the last run that is published, whose clock may have been ahead.

    By it runs are ordered: what is newest is announced and promoted.
    """
    moment, before = datetime.now(UTC), datetime.fromisoformat(latest["began"]) if latest else None
    if before and before >= moment:
        message = f"begin: the last run began at {before:%Y-%m-%d %H:%M} UTC, which is still to come; see to the clocks"
        print(message, file=sys.stderr)
        moment = before + timedelta(microseconds=1)
    return moment.isoformat(timespec="microseconds")


def _params(clone: Workspace) -> bytes:
    """params.yaml of the commit with the recipe and the window laid over it; the file itself where there are none."""
    recipe, window = os.environ.get("SLIMTOWER_RECIPE"), _window()
    committed = clone.read(PARAMS)
    if not recipe and not window:
        return committed
    params: dict[str, Any] = parse_mapping(committed.decode("utf-8"), PARAMS)
    if recipe:
        path = clone.folder / recipe
        if not path.resolve().is_relative_to(clone.folder.resolve()) or not path.is_file():
            raise UserError(f"SLIMTOWER_RECIPE: the project has no {recipe} at this commit; name one that it has")
        params = laid_over(params, read_text(path), dict(os.environ), Path(recipe))
    params["ingest"] = params.get("ingest", {}) | window
    return params_text(params, " and ".join(filter(None, (recipe, "the window" if window else "")))).encode()


def _variables(clone: Workspace) -> dict[str, str]:
    """The environment's values of the `${NAME}`s of the recipe, "" for those that it does not give."""
    recipe = os.environ.get("SLIMTOWER_RECIPE")
    names = variable_names(read_text(clone.folder / recipe)) if recipe else []
    return {name: os.environ.get(name, "") for name in names}


def _check_same(run: TaskRun, record: dict[str, Any]) -> None:
    """UserError when a run began with another recipe, window or variables."""
    window = {name.upper(): value for name, value in record["window"].items()}
    fixed = {"SLIMTOWER_RECIPE": record["recipe"], **window, **record["variables"]}
    differ = [name for name, value in fixed.items() if value != os.environ.get(name, "")]
    if differ:
        changes = ", ".join(f"{name} was {fixed[name]!r} and is {os.environ.get(name, '')!r}" for name in differ)
        raise UserError(
            f"{run.address} has begun otherwise: {changes}; give each deployment a SLIMTOWER_REMOTE of its own, and"
            " start a new run after a change of settings"
        )


def _check_graph(names: list[str]) -> None:
    """UserError when the scheduler, which may say for which stages it has tasks, has not exactly those of dvc.yaml."""
    tasks = set(os.environ.get("SLIMTOWER_STAGES", "").split())
    if tasks and (differ := sorted(tasks ^ set(names))):
        raise UserError(
            f"SLIMTOWER_STAGES: the graph's tasks and the stages of dvc.yaml differ in {', '.join(differ)}; the recipe"
            " of a run must have the students of the deployment's own recipe"
        )


def _window() -> dict[str, str]:
    """ingest.since and ingest.until as far as the environment gives them."""
    return {name: value for name in ("since", "until") if (value := os.environ.get(name.upper()))}


def _base(store: RunStore, clone: Workspace, names: list[str], latest: dict[str, Any] | None) -> Stages:
    """The lock to start from: the newest finished run's, else the commit's, without stages whose outputs are not there.

    A committed dvc.lock may be of outputs that this remote never saw. None at all where `publish` wrote the newest lock
    and was cut short: then this run announces what that one made, which DVC's run cache holds.
    """
    if (content := store.read(f"locks/{LATEST}/{LOCK}")) is not None:
        if latest is None or latest["lock"] != digest(content):
            return {}
        clone.write(LOCK, content)
    stages = lock_stages(clone.folder / LOCK)
    return {name: stages[name] for name in names if name in stages and _is_stored(store, stages[name])}


def _is_stored(store: RunStore, entry: dict[str, Any]) -> bool:
    """Tell whether DVC's remote has every output of a stage; the list of a folder is pushed after its files."""
    sums = [out.get("md5", "") for out in entry.get("outs", [])]
    return all(store.holds(f"{REMOTE}/files/md5/{md5[:2]}/{md5[2:]}") for md5 in sums)
