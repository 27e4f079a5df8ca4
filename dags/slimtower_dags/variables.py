"""The environment of a task: what `python -m pipeline.task` reads (docs/scheduling.md), as templates of Airflow."""

import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

from slimtower_dags.deployment import Deployment, Resources

SCHEDULED, BACKFILL = "scheduled", "backfill"  # types of runs that have a data interval of their own
CACHE, WORK = "/cache", "/work"  # volumes of containers and pods, whose own file system is read-only
WRITTEN = {
    "SLIMTOWER_WORK": WORK,
    "TMPDIR": WORK,
    "DVC_SITE_CACHE_DIR": f"{WORK}/dvc",
    "IR_DATASETS_HOME": f"{CACHE}/ir_datasets",
}


def run_name(run_id: str) -> str:
    """Airflow's run id as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run_id)


def until(params: Mapping[str, Any], dag_run: Any, days: int | None) -> str:
    """First date that a run does not read: given, or that of its data interval's end; "" without a window.

    A run that new data or a person started reads up to its own date, whatever interval Airflow infers for it.
    """
    if params["until"] or days is None:
        return str(params["until"] or "")
    return f"{_interval_end(dag_run):%Y-%m-%d}"


def since(params: Mapping[str, Any], dag_run: Any, days: int | None) -> str:
    """First date that a run reads: given, or `days` before the first that it does not read; "" = all."""
    if params["since"] or not days:
        return str(params["since"] or "")
    return before_until(params, dag_run, days)


def before_until(params: Mapping[str, Any], dag_run: Any, days: int) -> str:
    """Date so many days before the first that a run does not read."""
    end = date.fromisoformat(params["until"][:10]) if params["until"] else _interval_end(dag_run)
    return f"{end - timedelta(days=days):%Y-%m-%d}"


def _interval_end(dag_run: Any) -> Any:
    planned = _type(dag_run) in (SCHEDULED, BACKFILL)
    return (planned and dag_run.data_interval_end) or dag_run.run_after


def is_past(params: Mapping[str, Any], dag_run: Any) -> bool:
    """Tell whether a run is of a past window, which is not for serving: one of a backfill, or with `until` given."""
    return bool(params["until"]) or _type(dag_run) == BACKFILL


def _type(dag_run: Any) -> str:
    return str(getattr(dag_run.run_type, "value", dag_run.run_type))


MACROS = {"run_name": run_name, "since": since, "until": until, "before_until": before_until, "is_past": is_past}


def of_task(deployment: Deployment, resources: Resources, image: str) -> dict[str, str]:
    run = {
        "SLIMTOWER_RUN": "{{ run_name(dag_run.run_id) }}",
        "SLIMTOWER_AIRFLOW_RUN": "{{ dag_run.dag_id }}/{{ dag_run.run_id }}",
    }
    return run | of_resources(deployment, resources, image)


def of_resources(deployment: Deployment, resources: Resources, image: str) -> dict[str, str]:
    """What follows from the deployment alone, whatever runs it."""
    variables = {}
    if "@" in image and deployment.runner != "process":
        variables["SLIMTOWER_IMAGE_DIGEST"] = image.partition("@")[2]
    if resources.gpus:
        variables["SLIMTOWER_REQUIRE_CUDA"] = "1"
    if resources.processes > 1:
        variables["SLIMTOWER_PROCESSES"] = str(resources.processes)
    return variables | deployment.environment | resources.environment


def of_begin(deployment: Deployment, addresses: list[str], names: Iterable[str]) -> dict[str, str]:
    """What `begin` gets besides: the commit, recipe and window to fix, and the stages that the graph has tasks for.

    `names`: the variables that recipes read; of these a worker's own environment gives none.
    """
    days = deployment.window_days
    return (
        dict.fromkeys(names, "")
        | deployment.variables
        | {
            "SLIMTOWER_REF": "{{ params.ref }}",
            "SLIMTOWER_RECIPE": "{{ params.recipe or '' }}",
            "SLIMTOWER_STAGES": " ".join(addresses),
            "DATA": "{{ params.data or '' }}",
            "SINCE": f"{{{{ since(params, dag_run, {days}) }}}}",
            "UNTIL": f"{{{{ until(params, dag_run, {days}) }}}}",
        }
    )
