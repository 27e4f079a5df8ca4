"""Which run's release the promote DAG takes."""

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.callback_runner import create_executable_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
from slimtower_dags.assets import RELEASE, announce, serving_run


def called_by(*extras: dict[str, Any]) -> dict[Any, list[Any]]:
    """Events of releases, the oldest first."""
    events = enumerate(extras, start=1)
    return {
        RELEASE: [SimpleNamespace(extra=extra, timestamp=datetime(2026, 3, day, tzinfo=UTC)) for day, extra in events]
    }


def test_the_newest_release_that_calls_is_taken_unless_a_run_is_named() -> None:
    old, new, filled = {"run": "a", "backfill": False}, {"run": "b", "backfill": False}, {"run": "c", "backfill": True}
    assert serving_run({"run": ""}, called_by(old, new)) == "b"
    assert serving_run({"run": ""}, called_by(old, filled)) == "a"
    unordered = {RELEASE: list(reversed(called_by(old, new)[RELEASE]))}
    assert serving_run({"run": ""}, unordered) == "b"
    assert (
        serving_run({"run": "manual__2026-01-01T00:00:00+00:00"}, called_by(new)) == "manual__2026-01-01T00-00-00-00-00"
    )
    assert serving_run({"run": ""}, {}) == "latest", "by hand: with params that changed since the last event"
    assert serving_run({"run": ""}, called_by({})) == "latest"


def test_releases_of_a_backfill_alone_are_not_promoted() -> None:
    past = called_by({"run": "b", "backfill": True})
    assert serving_run({"run": ""}, past) == ""
    assert serving_run({"run": "b"}, past) == "b", "named by hand"


@pytest.mark.parametrize(
    ("run_type", "until_date", "past"),
    [("backfill", "", True), ("manual", "2026-01-01", True), ("scheduled", "", False)],
)
def test_the_event_of_a_release_names_its_run(run_type: str, until_date: str, past: bool) -> None:
    events = OutletEventAccessors()
    run = SimpleNamespace(run_id=f"{run_type}__2026-01-01T03:00:00+00:00", run_type=run_type)
    context = {"dag_run": run, "outlet_events": events, "params": {"until": until_date}}
    create_executable_runner(announce, events, logger=logging.getLogger()).run(context, None)  # as Airflow calls it
    assert events[RELEASE].extra == {"run": f"{run_type}__2026-01-01T03-00-00-00-00", "backfill": past}
