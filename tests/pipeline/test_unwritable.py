"""A file where a folder has to be: one line that names it and says what to do, from stages and from the pipeline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole_run import params_of, write_beir

from slimtower.common.errors import EXIT_DATA
from steps.frame.exit_file import read_exit

pytestmark = [pytest.mark.medium, pytest.mark.faults("full disk")]
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["steps.ingest", "pipeline"])
def test_data_that_is_a_file_is_to_be_moved_away(tiny_tower: Path, tmp_path: Path, command: str) -> None:
    judged = {"test": slice(0, 4), "dev": slice(4, 8), "train": slice(8, 20)}
    params = params_of("beir.yaml", tiny_tower, DATA=str(write_beir(tmp_path / "beir", judged=judged)))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params.model_dump()), encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "SLIMTOWER_EXIT_FILE": str(tmp_path / "exit"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    assert run("steps.ingest", "--list").returncode == 0
    (tmp_path / "data").write_text("notes")
    done = run(command)
    assert done.returncode == EXIT_DATA, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("slimtower: ") and "data" in message
    assert message.endswith("a file lies where a folder has to be: move it away, then run again")
    assert (tmp_path / "data").read_text() == "notes"
    if command != "pipeline":
        assert read_exit(tmp_path / "exit") == (EXIT_DATA, message.removeprefix("slimtower: "))
