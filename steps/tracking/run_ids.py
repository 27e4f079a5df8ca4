"""Which pipeline run a stage belongs to, at which commit, and what the scheduler calls it.

The parent of a stage's MLflow run is the run named by SLIMTOWER_PARENT_RUN, else the one keyed by the calling pipeline
(SLIMTOWER_PIPELINE, set by `make`), else by the process that started the stage (a plain `dvc repro`).
"""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slimtower.common.masking import redacted

_PAGE = 1000  # runs that are asked for at once
_FOLDER = "slimtower.folder"  # the tag of a pipeline's run that says where it was started


def found_runs(api: Any, experiment: str, condition: str) -> Iterator[Any]:
    """All runs of an experiment that meet a condition in MLflow's filter syntax, newest first, read page by page."""
    token = None
    while True:
        page = api.search_runs(
            [experiment], condition, max_results=_PAGE, order_by=["attributes.start_time DESC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def pipeline_key() -> str:
    """What tells one pipeline run from another: set by `make`, else the process that called this one."""
    return os.environ.get("SLIMTOWER_PIPELINE") or f"process-{os.getppid()}-{_started(os.getppid())}"


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot, so that a reused pid is another process."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[19] if stat.is_file() else "0"


def parent_run(api: Any, experiment: str) -> str:
    """Id of the pipeline's parent run; the first stage of a pipeline opens it."""
    if run_id := os.environ.get("SLIMTOWER_PARENT_RUN"):
        return run_id
    commit = git_commit()
    return pipeline_run(api, experiment, pipeline_key(), commit, run_name(commit), pipeline_folder())


def pipeline_run(api: Any, experiment: str, key: str, commit: str, name: str, folder: str) -> str:
    """Id of the parent run of the pipeline with this key; it is created, with this name, if there is none yet.

    `folder`: `pipeline_folder` of where it was started.
    """
    if "'" in key:  # of a path; MLflow's filters cannot say it
        key = hashlib.sha256(key.encode()).hexdigest()
    runs = api.search_runs([experiment], f"tags.`slimtower.pipeline` = '{key}'", max_results=1)
    if runs:
        return str(runs[0].info.run_id)
    tags = {"slimtower.pipeline": key, _FOLDER: folder, "slimtower.git_commit": commit, **scheduler_tags()}
    run = api.create_run(experiment, run_name=name, tags=tags)
    return str(run.info.run_id)


def pipeline_folder() -> str:
    """What tells this folder of this machine from others, whose runs on the same server are not to be closed here."""
    return hashlib.sha256(f"{platform.node()}\n{Path.cwd()}".encode()).hexdigest()[:16]


def run_name(commit: str) -> str:
    """What a pipeline's run is called: recipe, or demo without one, short commit (+: files differ) and time, UTC."""
    recipe = Path(os.environ.get("SLIMTOWER_RECIPE") or "demo").stem
    return f"{recipe} {commit[:7]}{'+' * commit.endswith('+dirty')} {datetime.now(UTC):%Y-%m-%d %H:%M}"


def open_parent(api: Any, experiment: str) -> str | None:
    """Id of the newest parent run of this folder that no one has closed, if any; a scheduled one's tasks close it."""
    for run in found_runs(
        api, experiment, f"attributes.status = 'RUNNING' and tags.`{_FOLDER}` = '{pipeline_folder()}'"
    ):
        if "slimtower.pipeline" in run.data.tags and "slimtower.airflow_run" not in run.data.tags:
            return str(run.info.run_id)
    return None


def scheduler_tags() -> dict[str, str]:
    """What only the scheduler knows of a run: its own id and the digest of the image that the run has."""
    variables = {"airflow_run": "SLIMTOWER_AIRFLOW_RUN", "image_digest": "SLIMTOWER_IMAGE_DIGEST"}
    return {f"slimtower.{tag}": redacted(value) for tag, name in variables.items() if (value := os.environ.get(name))}


def git_commit() -> str:
    """Commit of the tree, of a recipe's the project's; `+dirty` where tracked files differ; `unknown` without git."""
    if setting := os.environ.get("SLIMTOWER_GIT_COMMIT"):
        return setting
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+dirty" if changes.stdout.strip() else "")
