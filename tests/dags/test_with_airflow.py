"""The tests of with_airflow/, in Airflow's own environment: its pins are not the project's."""

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("SLIMTOWER_AIRFLOW_PYTHON") or PROJECT / ".airflow-venv/bin/python")


@pytest.mark.integration
def test_the_dags_in_airflow(tmp_path: Path) -> None:
    foreign = {"PYTHONPATH", "VIRTUAL_ENV", "SLIMTOWER_DEPLOYMENT", "PYTEST_ADDOPTS"}
    environment = {key: value for key, value in os.environ.items() if key not in foreign} | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
    }
    folder = Path(__file__).parent / "with_airflow"
    options = ["-q", "-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    command = [str(PYTHON), "-m", "pytest", *options, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
