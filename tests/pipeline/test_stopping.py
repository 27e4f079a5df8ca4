"""A pipeline whose terminal closes leaves nothing running."""

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

STAGES = "stages: {ingest: {cmd: 'echo $$ >began; sleep 600'}}\n"


@pytest.mark.slow
def test_a_pipeline_whose_terminal_closes_stops_dvc_and_its_stage(tmp_path: Path) -> None:
    shutil.copyfile("params.yaml", tmp_path / "params.yaml")
    (tmp_path / "dvc.yaml").write_text(STAGES)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    terminal, inner = pty.openpty()
    pipeline = subprocess.Popen(
        [sys.executable, "-m", "pipeline"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inner)
    deadline = time.monotonic() + 120
    while not (tmp_path / "began").exists():
        assert pipeline.poll() is None and time.monotonic() < deadline, os.read(terminal, 10000).decode()
        time.sleep(0.05)
    family = psutil.Process(pipeline.pid).children(recursive=True)
    assert any("repro" in child.cmdline() for child in family)
    os.close(terminal)
    assert pipeline.wait(60)
    assert not psutil.wait_procs(family, timeout=10)[1]
