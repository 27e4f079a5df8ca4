"""The assets that connect producers of logs, `retrain` and `promote`."""

from typing import Any

from airflow.sdk import Asset

from slimtower_dags.variables import is_past, run_name

LOG_PARTITIONS = Asset("slimtower-log-partitions", uri="slimtower://log-partitions", group="slimtower")
RELEASE = Asset("slimtower-release", uri="slimtower://release", group="slimtower")


def announce(context: Any, result: Any) -> None:
    """Say with the release's event which run published it; called after `publish` exited with 0."""
    run = context["dag_run"]
    context["outlet_events"][RELEASE].extra = {"run": run_name(run.run_id), "backfill": is_past(context["params"], run)}


def serving_run(params: Any, triggering_asset_events: Any) -> str:
    """The run whose release is to serve: given by hand, else that of the newest event that calls, else `latest`.

    Empty if only releases of past windows call: `promote` takes one only when its run is named by hand. `latest` has
    the newest params too, which no event tells of where they changed alone.
    """
    if params["run"]:
        return run_name(params["run"])
    events = [event for group in triggering_asset_events.values() for event in group]
    current = [event for event in events if not event.extra.get("backfill")]
    if events and not current:
        return ""
    runs = [
        event.extra["run"] for event in sorted(current, key=lambda event: event.timestamp) if event.extra.get("run")
    ]
    return str(runs[-1]) if runs else "latest"
