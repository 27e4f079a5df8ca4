"""A registry for the tests of promotion."""

from pathlib import Path

import pytest
from promote_registry import Project, open_project

from steps.promote import gate


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of three queries counts: the tests' evaluations are small."""
    monkeypatch.setattr(gate, "SLICE_QUERIES", 3)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an MLflow database for all tests, a registered model each; making one takes seconds."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def project(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return open_project(tmp_path, database, monkeypatch)
