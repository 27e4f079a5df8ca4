"""A project folder that was moved or copied keeps its runs, models and champion, and leaves the original alone."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

from slimtower.common.errors import UserError
from slimtower.registry import client as registry
from steps.tracking import runs as tracking
from steps.tracking.stage_run import spools, stage_run

pytestmark = pytest.mark.medium


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Be a command that is typed in this folder, in a process of its own."""
    patch.chdir(folder)
    patch.setenv("SLIMTOWER_CACHE", str(folder / ".cache"))
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _artifact_repos_cache.clear()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run, its file, a logged model, and a champion that is registered by its address."""
    folder = tmp_path_factory.mktemp("with a space, 100%, 'quotes' and ü")
    (folder / "release").mkdir()
    (folder / "release/weights").write_text("first")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        with stage_run("release", {}) as run:
            run.artifact(folder / "release/weights")
            run.model(folder / "release", "student")
        api = registry.client()
        model = api.get_run(run.run_id).data.tags["slimtower.model"]
        api.create_registered_model("slimtower")
        location = api.get_logged_model(model).artifact_location
        version = api.create_model_version("slimtower", location, run_id=run.run_id, model_id=model)
        api.set_registered_model_alias("slimtower", "champion", version.version)
    return folder


@pytest.fixture
def original(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Such a project, itself a copy."""
    folder = Path(shutil.copytree(template, tmp_path / "a b%"))
    enter(folder, monkeypatch)
    registry.client()
    return folder


def artefacts(folder: Path) -> dict[str, bytes]:
    files = (path for path in (folder / "mlartifacts").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def addresses(database: Path) -> Iterator[str]:
    with sqlite3.connect(database) as connection:
        for query in (
            "SELECT artifact_location FROM experiments WHERE name = 'slimtower'",
            "SELECT artifact_uri FROM runs",
            "SELECT artifact_location FROM logged_models",
            "SELECT source FROM model_versions",
            "SELECT storage_location FROM model_versions",
        ):
            yield from (str(row[0]) for row in connection.execute(query))


def check_whole(folder: Path, api: Any, into: Path) -> None:
    """Runs, models and the champion are read from this folder, and new ones are written there."""
    experiment = tracking.experiment_id(api)
    run = api.search_runs([experiment], "tags.`slimtower.stage` = 'release'")[0]
    assert Path(api.download_artifacts(run.info.run_id, "weights")).read_text() == "first"
    assert tracking.MlflowRun(api, run.info.run_id, experiment).has_model(run.data.tags["slimtower.model"])
    champion = download_artifacts(
        "models:/slimtower@champion", dst_path=str(into), tracking_uri=registry.tracking_uri()
    )
    assert (Path(champion) / "weights").read_text() == "first"
    before = set(artefacts(folder))
    with stage_run("later", {}) as later:
        later.artifact(folder / "release/weights")
    assert len(set(artefacts(folder)) - before) == 1
    assert all(address.startswith(f"{folder.as_uri()}/mlartifacts") for address in addresses(folder / "mlflow.db"))


@pytest.mark.parametrize("how", ["moved", "copied", "moved twice", "moved behind a link"])
def test_runs_models_and_champion_follow_the_folder(
    original: Path, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    there, experiment = original.with_name("there's 50% more"), tracking.experiment_id(registry.client())
    if how == "copied":
        shutil.copytree(original, there)
    else:
        original.rename(there)
    if how == "moved behind a link":
        original.symlink_to(there)
    if how == "moved twice":
        enter(there, monkeypatch)
        registry.client()
        there = there.rename(original.with_name("third"))
    original_state = (artefacts(original), (original / "mlflow.db").read_bytes()) if how == "copied" else None
    enter(there, monkeypatch)
    capfd.readouterr()
    api = registry.client()
    message = capfd.readouterr().err
    assert (message.count("\n"), str(there) in message) == ((0, False) if "link" in how else (1, True))
    assert tracking.experiment_id(api) == experiment
    if "link" not in how:
        check_whole(there, api, there / "champion")
    registry.client()
    assert "MLflow now" not in capfd.readouterr().err  # once is enough
    if original_state:
        assert original_state == (artefacts(original), (original / "mlflow.db").read_bytes())
        enter(original, monkeypatch)
        check_whole(original, registry.client(), original / "champion")


def test_a_database_that_was_copied_without_its_artefacts_is_refused(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = original.with_name("there")
    there.mkdir()
    shutil.copy(original / "mlflow.db", there)
    enter(there, monkeypatch)
    with pytest.raises(UserError, match="copy mlartifacts to"):
        registry.client()
    shutil.copytree(original / "mlartifacts", there / "mlartifacts")
    assert tracking.experiment_id(registry.client())


def test_what_waits_for_the_database_moves_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    enter(tmp_path / "first", monkeypatch)
    first = spools().relative_to(tmp_path / "first")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'first/other.db'}")
    assert spools().name != first.name
    enter(tmp_path / "second", monkeypatch)
    assert spools().relative_to(tmp_path / "second") == first
