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


def newest_run(params: Any, triggering_asset_events: Any) -> str:
    """The run whose release is meant: given by hand, else that of the newest event that calls, else `latest`.

    Releases of past windows are not for serving: `promote` takes one only when its run is named by hand. `latest` has
    the newest params too, which no event tells of where they changed alone.
    """
    if params["run"]:
        return run_name(params["run"])
    in_order = sorted(_events(triggering_asset_events), key=lambda event: event.timestamp)
    runs = [event.extra["run"] for event in in_order if event.extra.get("run") and not event.extra.get("backfill")]
    return str(runs[-1]) if runs else "latest"


def is_for_serving(triggering_asset_events: Any) -> bool:
    """False for a run that only releases of past windows started."""
    events = _events(triggering_asset_events)
    return not events or any(not event.extra.get("backfill") for event in events)


def _events(triggering_asset_events: Any) -> list[Any]:
    """Events of all assets, in no order."""
    return [event for group in triggering_asset_events.values() for event in group]
