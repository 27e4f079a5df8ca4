"""A new mlflow.db appears whole: several processes that begin at once, one that is killed, and one left half made."""

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slimtower.common.errors import UserError
from slimtower.registry.client import client
from steps.tracking.runs import experiment_id

pytestmark = [pytest.mark.medium, pytest.mark.faults("new database")]

ROOT = Path(__file__).parents[2]
FIRST_CONTACT = """
from slimtower.registry.client import client
from steps.tracking.runs import experiment_id

print(experiment_id(client()))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "mlflow.db"


def start_process(folder: Path) -> subprocess.Popen[str]:
    """A process that is about to make its first contact."""
    return subprocess.Popen(
        [sys.executable, "-c", FIRST_CONTACT], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_processes_that_begin_at_once_share_it(file: Path) -> None:
    file.touch()  # as a kill of an earlier version left it
    running = [start_process(file.parent) for _ in range(2)]
    answers = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    assert {output for output, _ in answers} == {"1\n"}
    assert {path.name for path in file.parent.iterdir()} == {"mlflow.db", ".mlflow.db.lock"}


def test_a_kill_while_it_is_made_leaves_none_and_the_next_start_makes_it(file: Path) -> None:
    process = start_process(file.parent)
    deadline = time.monotonic() + 300
    while not any("journal" not in path.name and path.stat().st_size > 100_000 for path in file.parent.glob(".stag*")):
        assert process.poll() is None and time.monotonic() < deadline, "it was never half made"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not file.exists() and list(file.parent.glob(".staging.*"))
    assert experiment_id(client()) == "1"
    assert {path.name for path in file.parent.iterdir()} == {"mlflow.db", ".mlflow.db.lock"}


def test_one_that_was_left_half_made_is_to_be_moved_away(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("create table experiments (experiment_id integer)")
        connection.execute("create table _alembic_tmp_runs (run_uuid integer)")
    with pytest.raises(UserError, match=r"mlflow\.db: cannot be used for tracking .*; move it away, and a new one is"):
        client()
