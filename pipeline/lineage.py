"""Which run made which output: md5s of dvc.lock as a tag, and links from reused stages to their makers.

`make` calls `finish` by itself. After a plain `dvc repro`, `python -m pipeline.lineage` finishes its MLflow run.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.surroundings import pid_at_work
from slimtower.common.errors import UserError, guarded, line
from slimtower.common.files import sha256_file
from slimtower.common.masking import redacted
from slimtower.registry.client import Unwanted, check_answering, client, reaching, sending
from steps.core.params import nested_value
from steps.evaluate.params import HEADLINE
from steps.promote.dvc_lock import Stages, lock_stages, outputs
from steps.tracking.run_ids import (
    found_runs,
    git_commit,
    open_parent,
    parent_run,
    pipeline_folder,
    pipeline_key,
    pipeline_run,
    run_name,
)
from steps.tracking.runs import NOTE, MlflowRun, experiment_id, shortened
from steps.tracking.stage_run import Spool, send_each, send_waiting, spools, waiting_spools

INGESTED, METRICS = "data/ingest", "reports/metrics.json"
_FILES = ("dvc.lock", "params.yaml", METRICS)
MD5 = "slimtower.md5"  # the tag of a stage's run that says what it wrote and read
_KINDS = ("out", "dep")


def finish_or_wait(*, failed: bool, names: Sequence[str] | None = None) -> str:
    """`finish` this pipeline's run; while the tracking server is away keep what that needs for `send_finished`."""
    try:
        with sending():
            check_answering()
            return finish(failed=failed, names=names)
    except UserError as error:
        names = list(_here(lock_stages(), Path())) if names is None else list(names)
        commit = git_commit()
        key = {
            "pipeline": pipeline_key(),
            "commit": commit,
            "named": run_name(commit),
            "folder": pipeline_folder(),
            "failed": failed,
            "names": names,
        }
        with tempfile.TemporaryDirectory() as root:
            for name in filter(os.path.isfile, _FILES):
                (Path(root) / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(name, Path(root) / name)
            spool = Spool.make(spools(), key)
            is_kept = spool.add("finish", {"root": Path(root)}) is None
            spool.close()
        if not is_kept:
            spool.remove()
            return (
                f"not in MLflow: {line(error)}; and the disk has no room to keep it for later: free some, then run"
                " `python -m pipeline.lineage` here"
            )
        return f"not in MLflow yet: {line(error)}; the next run, or `python -m pipeline.lineage`, sends {spool.folder}"


def send_finished() -> None:
    """Send what stages could not, and finish pipeline runs that ended meanwhile; UserError if the server is away."""
    send_waiting()
    send_each("names", _send_finish)


def _send_finish(spool: Spool) -> None:
    check_answering()
    key, api = spool.opening, client()
    parent = pipeline_run(api, experiment_id(api), key["pipeline"], key["commit"], key["named"], key.get("folder", ""))
    for _, arguments in spool.unsent():
        done = finish(parent, failed=key["failed"], root=arguments["root"], names=key["names"])
        print(f"lineage: {done}, which ended while the tracking server was away")


def waits() -> bool:
    """Tell whether anything on this cache waits for the tracking server."""
    return any(True for _ in waiting_spools(spools()))


def finish(
    parent: str | None = None, *, failed: bool = False, root: Path | None = None, names: Sequence[str] | None = None
) -> str:
    """Close a pipeline's parent run (this pipeline's, unless given); returns what happened, in words.

    Stages that ran get the md5s of their dependencies and outputs as a tag. Where the pipeline succeeded, every other
    stage of dvc.lock was reused, from disk or from DVC's cache: it gets a run that names its maker. `names` are the
    stages that there are; without them, those whose outputs are on disk. `root` is the folder of dvc.lock.
    """
    root = root or Path()
    stages = lock_stages(root / "dvc.lock")
    send_waiting()
    api = client()
    experiment = experiment_id(api)
    parent = parent or parent_run(api, experiment)
    children = found_runs(api, experiment, f"tags.`mlflow.parentRunId` = '{parent}'")
    finished = sorted(
        (run for run in children if run.info.status == "FINISHED"),
        key=lambda run: (run.info.end_time, run.info.start_time),
    )
    ran = {run.data.tags["slimtower.stage"]: run.info.run_id for run in finished}  # of several tries the last
    for stage, run_id in ran.items():
        api.set_tag(run_id, MD5, _md5s(stages.get(stage, {})))
    if names is None:  # dvc.lock also remembers students that params dropped
        names = list(_here(stages, root))
    reused = [] if failed else sorted(set(names) - set(ran))
    runs = ran | {stage: _link(api, experiment, parent, stage, stages[stage]) for stage in reused}
    _name_data(api, runs.get("ingest"), [parent, *(ran[stage] for stage in ran if _reads_data(stages.get(stage, {})))])
    _describe(api, parent, root)
    if not failed and "evaluate" in runs:
        _show_result(api, experiment, parent, runs["evaluate"])
    for name in _FILES:
        if (root / name).is_file():
            _attach(MlflowRun(api, parent, experiment), root / name)
    if stages:
        api.set_tag(parent, "slimtower.dvc_lock", sha256_file(root / "dvc.lock"))
    api.set_terminated(parent, "FAILED" if failed else "FINISHED")
    linked = [run for run in finished if run.data.tags.get("slimtower.reused") == "true"]  # by an earlier call
    linked = [run for run in linked if run.info.run_id in ran.values()]
    count = len(ran) - len(linked)
    return f"{count} stage{'' if count == 1 else 's'} ran, {len(reused) + len(linked)} reused; MLflow run {parent}"


def _describe(api: Any, parent: str, root: Path) -> None:
    """Say as params of a pipeline's run what it is of: data sets, teacher, students."""
    run = api.get_run(parent)
    params = (
        yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8")) if (root / "params.yaml").is_file() else {}
    )
    index = nested_value(params, "teach", "index")
    teacher = nested_value(params, "teach", "teacher", str(index))
    described = {
        "datasets": ", ".join(sorted(entry.dataset.name for entry in run.inputs.dataset_inputs)),
        "teacher": str(nested_value(teacher, "base") or nested_value(teacher, "model") or index or ""),
        "students": ", ".join(map(str, nested_value(params, "distill", "students") or [])),
    }
    for name, value in described.items():
        if value and name not in run.data.params:  # a task may be run again, and MLflow takes a param once
            api.log_param(parent, name, redacted(value)[:6000])


def _show_result(api: Any, experiment: str, parent: str, evaluation: str) -> None:
    """Give a pipeline's run the headline and the report of its evaluation, or of the one that it was reused from."""
    maker = api.get_run(evaluation).data.tags.get("slimtower.made_by", evaluation)
    if maker.startswith("unknown"):
        return
    data = api.get_run(maker).data
    MlflowRun(api, parent, experiment).metrics({name: data.metrics[name] for name in HEADLINE if name in data.metrics})
    if NOTE in data.tags:
        api.set_tag(parent, NOTE, data.tags[NOTE])


def _attach(run: MlflowRun, file: Path) -> None:
    """Attach a file; one that is refused for good is told, and the run ends without it."""
    try:
        with reaching():
            run.artifact(file)
    except Unwanted as error:
        print(f"lineage: {file.name} is not attached: {line(error)}", file=sys.stderr)


def _here(stages: Stages, root: Path) -> Iterator[str]:
    return (name for name, entry in stages.items() if all((root / path).exists() for path in outputs(entry)))


def _md5s(entry: dict[str, Any]) -> str:
    """JSON of what one stage wrote and read: `{"outs":{path:md5},"deps":{path:md5}}`; without `deps` if too long."""
    hashes = {
        f"{kind}s": {item["path"]: item["md5"] for item in entry.get(f"{kind}s", []) if "md5" in item}
        for kind in _KINDS
    }
    text = json.dumps(hashes, separators=(",", ":"))
    return text if shortened(text) == text else json.dumps(hashes | {"deps": {}}, separators=(",", ":"))


def _reads_data(entry: dict[str, Any]) -> bool:
    return any(f"{item['path']}/".startswith(f"{INGESTED}/") for item in entry.get("deps", []))


def _name_data(api: Any, ingest: str | None, runs: Sequence[str]) -> None:
    """Let these runs name the data sets that the run of ingest names."""
    datasets = api.get_run(ingest).inputs.dataset_inputs if ingest else []
    for run_id in runs if datasets else ():
        api.log_inputs(run_id, datasets)


def _link(api: Any, experiment: str, parent: str, stage: str, entry: dict[str, Any]) -> str:
    """Open and close a run for a reused stage, linked to the latest run that wrote the same outputs; returns its id."""
    md5s = _md5s(entry)
    outs = md5s[: md5s.rindex('"deps":')]
    filter_string = f"tags.`{MD5}` LIKE '{outs}%' and tags.`slimtower.stage` = '{stage}'"
    makers = (
        run for run in found_runs(api, experiment, filter_string) if run.data.tags.get("slimtower.reused") != "true"
    )
    maker = next((run.info.run_id for run in makers), None)
    tags = {
        MD5: md5s,
        "mlflow.parentRunId": parent,
        "slimtower.stage": stage,
        "slimtower.reused": "true",
        "slimtower.made_by": maker or "unknown: made outside this tracking server",
    }
    run = api.create_run(experiment, run_name=f"{stage} (reused)", tags=tags)
    _name_data(api, maker, [run.info.run_id])
    api.set_terminated(run.info.run_id, "FINISHED")
    return str(run.info.run_id)


def main() -> None:
    """Finish the pipeline runs that wait for it, and the newest of this folder that is still open."""
    with reaching():
        send_finished()
        if pid := pid_at_work(Path()):
            print(
                f"lineage: process {pid} runs a stage in this folder, so its pipeline's run stays open; run this again"
                " afterwards. If that is another process, remove .dvc/tmp/rwlock first"
            )
            return
        api = client()
        parent = open_parent(api, experiment_id(api))
        print(
            f"lineage: {finish(parent)}"
            if parent
            else "lineage: no pipeline run that was started in this folder is open"
        )


if __name__ == "__main__":
    guarded(main)
