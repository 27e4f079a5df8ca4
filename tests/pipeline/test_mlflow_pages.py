"""`make mlflow`: the address is printed, no background jobs run, and a server's own pages are only named."""

import json
import sys
from pathlib import Path

import pytest

from pipeline import pages
from slimtower.registry import client as registry
from steps.evaluate.params import HEADLINE
from steps.tracking import runs as tracking

pytestmark = pytest.mark.medium


def test_the_pages_of_a_local_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], folder: Path, environment: dict[str, str]) -> int:
        started.append((command, environment))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", raising=False)
    monkeypatch.setattr(pages, "run", run)
    monkeypatch.setattr(pages, "stop_when_asked", lambda: None)
    monkeypatch.setattr(sys, "argv", ["pages", "--port", "5099"])
    with pytest.raises(SystemExit) as ended:
        pages.main()
    assert ended.value.code == 0
    [(command, environment)] = started
    assert f"sqlite:///{tmp_path / 'mlflow.db'}" in command and "5099" in command
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    api = registry.client()
    experiment = api.get_experiment(tracking.experiment_id(api))
    assert f"http://localhost:5099/#/experiments/{experiment.experiment_id}/runs" in capfd.readouterr().out
    [view] = [value for name, value in experiment.tags.items() if name.startswith("mlflow.sharedViewState.")]
    assert {f"metrics.`{name}`" for name in HEADLINE} <= set(json.loads(view)["selectedColumns"])
