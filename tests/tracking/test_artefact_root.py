"""An artefact root that this machine cannot use: one line names it, and the stage's work waits as without a server."""

from pathlib import Path

import pytest

from slimtower.registry import client as registry
from steps.tracking.stage_run import spools, stage_run

pytestmark = pytest.mark.medium


@pytest.mark.parametrize(
    ("root", "fix"),
    [
        ("file:///proc/nowhere/artefacts", "let this machine write there"),
        ("wasbs://container@account.blob.core.windows.net/x", "install azure"),
        ("unheard-of://x/y", "let this machine write there"),
    ],
)
def test_a_stage_keeps_what_a_root_does_not_take(
    root: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "x")
    registry.client().create_experiment("slimtower", artifact_location=root)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("w")
    with stage_run("distill@2l", {"epochs": 1}) as run:
        run.model(tmp_path / "model", "student")
        run.artifact(tmp_path / "model/weights")
        run.metric("loss", 1.0)
    messages = [text for text in capfd.readouterr().err.splitlines() if "artefact root" in text]
    assert len(messages) == 1 and root.rpartition("@")[2] in messages[0] and fix in messages[0]  # a login is masked
    [waits] = spools().iterdir()
    assert len(list(waits.rglob("weights"))) == 2


def test_a_file_that_is_missing_is_no_fault_of_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(FileNotFoundError), stage_run("mine", {}) as run:
        run.artifact(tmp_path / "missing")
