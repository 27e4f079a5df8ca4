"""The last task: what the stages made becomes one dvc.lock, and the MLflow run says where each output comes from."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.lineage import METRICS, finish
from pipeline.task.run import BEGIN, LATEST, TaskRun, digest, json_bytes, newer_run, read_json, write_lock
from pipeline.task.workspace import LOCK, PARAMS, SOURCES, Workspace
from slimtower.common.errors import EXIT_NOTHING, UserError
from slimtower.registry.client import client, reaching
from steps.promote.dvc_lock import Stages, outputs


def publish(run: TaskRun) -> int:
    """Write locks/<run>/ and locks/latest/ and close the MLflow run; 99 when there is nothing to announce.

    That is when no stage ran, and when locks/latest/ is of a run that began later. Then it stays, as it does with
    SLIMTOWER_BACKFILL, for a run of the past. Raises UserError when a stage is missing or not up to date.
    """
    record = run.must_have_begun()
    with run.workspace(record["commit"]) as clone:
        base, fragments = run.lay_out(clone)
        stages, names = clone.lock(), record["stages"]
        if absent := [name for name in names if name not in stages]:
            raise UserError(f"{run.address}: {', '.join(absent)} did not finish; run their tasks again, then publish")
        clone.fetch_beside()
        if (old := _outdated(stages, base, fragments, clone.digests)) or clone.has_work():
            outdated = ", ".join(old) or "a stage"
            raise UserError(
                f"{run.address}: {outdated} did not run on what others made; run the tasks again in their order"
            )
        write_lock(clone, {name: stages[name] for name in names})  # without stages that params dropped
        with reaching():
            _close(clone, stages, names, record["parent_run"], ran=bool(fragments))
        if not fragments and record["base_parent"]:  # whoever reads the lock wants the run that made it
            record["parent_run"] = record["base_parent"]
        record["lock"] = digest(clone.read(LOCK))
        files = {name: clone.read(name) for name in (LOCK, PARAMS, SOURCES)} | {BEGIN: json_bytes(record)}
    for folder in (run.name, LATEST) if _is_newest(run, record) else (run.name,):
        for name, content in files.items():
            run.store.write(f"locks/{folder}/{name}", content)
    print(f"publish: {run.store.url}/locks/{run.name}")
    if fragments and (newer := newer_run(run.store, record)):
        print(f"publish: not announced, as {newer} began later and is published; `promote` takes {run.name} by name")
        return EXIT_NOTHING
    return 0 if fragments else EXIT_NOTHING


def _is_newest(run: TaskRun, record: dict[str, Any]) -> bool:
    """Tell whether a run is of the present, and locks/latest/ not of one that began later."""
    latest = read_json(run.store, f"locks/{LATEST}/{BEGIN}")
    return not os.environ.get("SLIMTOWER_BACKFILL") and (not latest or latest["began"] <= record["began"])


def _outdated(
    stages: Stages, base: Stages, fragments: dict[str, Stages], digests: Callable[[Path], Mapping[Path, str]]
) -> list[str]:
    """Stages that did not run though this run changed what they read; DVC cannot tell of a folder that is not here.

    `digests`: MD5 of each file of an output. A stage that reads one file of a folder is held to that file alone. One
    that reads a folder inside an output counts as outdated.
    """
    remade = {name: entry for fragment in fragments.values() for name, entry in fragment.items()}
    fresh = [
        Path(path)
        for name, entry in remade.items()
        for path, md5 in _digests_of(entry).items()
        if md5 is None or md5 != _digests_of(base.get(name, {})).get(path)
    ]
    cached_digests = cache(digests)

    def changed(path: Path, md5: str | None) -> bool:
        is_output = any(path == out or path in out.parents for out in fresh)
        return is_output or any(cached_digests(out).get(path) != md5 for out in fresh if out in path.parents)

    return [
        name
        for name, entry in stages.items()
        if name not in remade and any(changed(Path(dep["path"]), dep.get("md5")) for dep in entry.get("deps", []))
    ]


def _digests_of(entry: dict[str, Any]) -> dict[str, str | None]:
    """Path -> MD5 of each output of a stage of dvc.lock."""
    return {out["path"]: out.get("md5") for out in entry.get("outs", [])}


def _close(clone: Workspace, stages: Stages, names: list[str], parent: str, *, ran: bool) -> None:
    """Close the MLflow run; one in which nothing ran gets no links to what it would have reused."""
    if not ran:
        api = client()
        api.set_tag(parent, "slimtower.nothing_new", "true")
        api.set_terminated(parent, "FINISHED")
        return
    if METRICS in {str(out) for name in names for out in outputs(stages[name])}:
        clone.dvc("pull", METRICS)
    print(f"publish: {finish(parent, root=clone.folder, names=names)}")
