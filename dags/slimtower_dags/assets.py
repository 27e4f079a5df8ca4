"""The assets that connect producers of logs, `retrain` and `promote`."""

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Asset

from slimtower_dags.variables import is_past, run_name

LOG_PARTITIONS = Asset("slimtower-log-partitions", uri="slimtower://log-partitions", group="slimtower")
RELEASE = Asset("slimtower-release", uri="slimtower://release", group="slimtower")


def announce(context: Any, result: Any) -> None:
    """Say with the release's event which run published it; called after `publish` exited with 0."""
    run = context["dag_run"]
    context["outlet_events"][RELEASE].extra = {"run": run_name(run.run_id), "backfill": is_past(context["params"], run)}


def newest_run(params: Any, triggering_asset_events: Any, published: Iterable[Any] = ()) -> str:
    """The run whose release is meant: given by hand, else that of the newest event that calls, else of those published.

    Releases of past windows are not for serving: `promote` takes one only when its run is named by hand. Where Airflow
    knows of no release it is `latest`, which the store of runs knows.
    """
    if params["run"]:
        return run_name(params["run"])
    for events in (_events(triggering_asset_events), published):
        in_order = sorted(events, key=lambda event: event.timestamp)
        runs = [event.extra["run"] for event in in_order if event.extra.get("run") and not event.extra.get("backfill")]
        if runs:
            return str(runs[-1])
    return "latest"


def is_for_serving(triggering_asset_events: Any) -> bool:
    """False for a run that only releases of past windows started."""
    events = _events(triggering_asset_events)
    return not events or any(not event.extra.get("backfill") for event in events)


def _events(triggering_asset_events: Any) -> list[Any]:
    """Events of all assets, in no order."""
    return [event for group in triggering_asset_events.values() for event in group]
