"""Which run made which output: md5s of dvc.lock as tags, and links from restored stages to their makers."""

import os
from pathlib import Path
from typing import Any

import yaml

from steps.core.files import sha256_file
from steps.core.tracking import client, experiment_id, parent_run

Stages = dict[str, dict[str, Any]]


def lock_stages(path: Path = Path("dvc.lock")) -> Stages:
    """Stages of dvc.lock with their command, dependencies, params and outputs; none when there is no lock yet."""
    if not path.is_file():
        return {}
    stages: Stages = yaml.safe_load(path.read_text(encoding="utf-8")).get("stages", {})
    return stages


def finish(before: Stages, missing: set[str]) -> str:
    """Tag the pipeline's runs with the md5s of dvc.lock and log dvc.lock; returns what happened, in words.

    `before` is dvc.lock as it was, `missing` the stages whose outputs were not on disk: a stage of either kind that
    logged no run in this pipeline was restored by DVC, and gets a run that names its maker.
    """
    after = lock_stages()
    changed = {stage for stage, entry in after.items() if before.get(stage) != entry}
    if not (changed | missing) and not os.environ.get("SLIMTOWER_PARENT_RUN"):
        return "nothing to do, every stage is up to date"
    api = client()
    experiment = experiment_id(api)
    parent = parent_run(api, experiment)
    children = api.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'", max_results=1000)
    ran = {run.data.tags["slimtower.stage"]: run.info.run_id for run in children if run.info.status == "FINISHED"}
    restored = sorted((changed | missing) & set(after) - set(ran))
    for stage in restored:
        run_id = _link(api, experiment, parent, stage, after[stage])
        ran[stage] = run_id
    for stage, run_id in ran.items():
        for name, value in _md5_tags(after.get(stage, {})).items():
            api.set_tag(run_id, name, value)
    api.set_tag(parent, "slimtower.dvc_lock", sha256_file(Path("dvc.lock")))
    api.log_artifact(parent, "dvc.lock")
    api.log_artifact(parent, "params.yaml")
    metrics = Path("reports/metrics.json")
    if metrics.is_file():
        api.log_artifact(parent, str(metrics))
    api.set_terminated(parent, "FINISHED")
    return f"{len(ran) - len(restored)} stages ran, {len(restored)} restored; MLflow run {parent}"


def _md5_tags(entry: dict[str, Any]) -> dict[str, str]:
    """`dep_md5.<path>` and `out_md5.<path>` of one stage."""
    return {
        f"{kind}_md5.{item['path']}": item["md5"]
        for kind in ("dep", "out")
        for item in entry.get(f"{kind}s", [])
        if "md5" in item
    }


def _link(api: Any, experiment: str, parent: str, stage: str, entry: dict[str, Any]) -> str:
    """A run for a restored stage, linked to the latest run that wrote the same outputs; returns its id."""
    tags = {"mlflow.parentRunId": parent, "slimtower.stage": stage, "slimtower.restored": "true"}
    outs = {name: value for name, value in _md5_tags(entry).items() if name.startswith("out_md5.")}
    wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in outs.items())
    makers = api.search_runs([experiment], f"{wanted} and tags.`slimtower.stage` = '{stage}'", max_results=20)
    made = [run.info.run_id for run in makers if run.data.tags.get("slimtower.restored") != "true"]
    tags["slimtower.made_by"] = made[0] if made else "unknown: made outside this tracking server"
    run = api.create_run(experiment, run_name=f"{stage} (restored)", tags=tags)
    api.set_terminated(run.info.run_id, "FINISHED")
    return str(run.info.run_id)
