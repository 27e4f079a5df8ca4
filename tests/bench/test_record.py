"""The seconds that a results file quotes are those of the newest pipeline that did some work."""

import sys
from pathlib import Path

import pytest

from bench import record
from bench.record import stage_seconds
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.registry import client as registry
from steps.tracking import runs as tracking


@pytest.mark.medium
def test_the_newest_pipeline_that_ran_a_stage_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(UserError, match="no finished pipeline run that ran a stage"):
        stage_seconds()
    api = registry.client()
    experiment = tracking.experiment_id(api)

    def run(start: int, seconds: float, status: str = "FINISHED", **tags: str) -> str:
        named = {key.replace("__", "."): value for key, value in tags.items()}
        run_id = api.create_run(experiment, start_time=start, tags=named).info.run_id
        if status != "RUNNING":
            api.set_terminated(run_id, status, end_time=start + round(seconds * 1000))
        return str(run_id)

    old = run(1000, 9, slimtower__pipeline="old")
    run(1000, 2.5, mlflow__parentRunId=old, slimtower__stage="teach")
    ingest = run(1000, 3.5, mlflow__parentRunId=old, slimtower__stage="ingest")
    reused = {"slimtower__reused": "true", "slimtower__made_by": ingest}
    newer = run(2000, 9, slimtower__pipeline="newer", slimtower__git_commit="c0ffee")
    run(2000, 1.5, mlflow__parentRunId=newer, slimtower__stage="teach")
    run(2000, 0.5, mlflow__parentRunId=newer, slimtower__stage="ingest", **reused)
    unknown_maker = {"slimtower__reused": "true", "slimtower__made_by": "unknown: made outside this tracking server"}
    run(2000, 0.5, mlflow__parentRunId=newer, slimtower__stage="mine@click", **unknown_maker)
    run(2000, 8.0, mlflow__parentRunId=newer, slimtower__stage="promote")
    run(2000, 8.0, "RUNNING", mlflow__parentRunId=newer, slimtower__stage="promote")
    idle = run(3000, 9, slimtower__pipeline="nothing to do")
    run(3000, 0.5, mlflow__parentRunId=idle, slimtower__stage="teach", slimtower__reused="true")
    run(4000, 9, "FAILED", slimtower__pipeline="failed")
    assert stage_seconds() == ({"teach": 1.5, "ingest": 3.5}, "c0ffee")


def test_a_run_of_another_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = tmp_path / "metrics.json"
    metrics.write_text("{}")
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench.record", "demo", str(metrics)])
    monkeypatch.setattr(record, "stage_seconds", lambda: ({"teach": 1.5}, "c0ffee"))
    record.main()
    assert read_json(tmp_path / "demo.json")["stage_seconds"] == {"teach": 1.5}
    monkeypatch.setattr(record, "stage_seconds", lambda: ({"teach": 2.0}, "another"))
    with pytest.raises(UserError, match="the run is of commit another"):
        record.main()
    assert read_json(tmp_path / "demo.json")["stage_seconds"] == {"teach": 1.5}
