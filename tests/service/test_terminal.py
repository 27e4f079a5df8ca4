"""What `serve` says at a terminal, and that an error comes once."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from serve_process import ROOT, free_port, get, status, until

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.service.sources import FolderSource
from slimtower.serving.choice import release_folder


@pytest.mark.slow
def test_a_person_at_a_terminal_sees_one_line_and_a_container_json(released: Path, tmp_path: Path) -> None:
    port, (ours, theirs) = free_port(), pty.openpty()
    command = [sys.executable, "-m", "slimtower", "serve", "--release", str(released / "models/release")]
    with (tmp_path / "errors").open("w") as errors:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, f"--port={port}"], cwd=tmp_path, env=environment, stdout=theirs, stderr=errors
        )
    try:
        until(lambda: status(f"http://127.0.0.1:{port}/health") == 200, process)
        for query in ("s", "su", "sum"):
            get(f"http://127.0.0.1:{port}/search?query={query}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        os.set_blocking(ours, False)
        os.close(theirs)
    with pytest.raises(OSError):  # nothing to read: no line for each letter
        assert not os.read(ours, 1000)
        raise OSError
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert f"http://localhost:{port}" in line


def test_where_no_release_is_yet_the_command_of_that_run_is_named(tmp_path: Path) -> None:
    laid_over = "# params.yaml of the project with recipes/ubi.yaml laid over it\n"
    with pytest.raises(UserError, match="`make demo`"):
        FolderSource(tmp_path / "models/release", "").poll()
    write_json(tmp_path / "runs/ubi/models/release/2l/manifest.json", {})
    (tmp_path / "runs/ubi/params.yaml").write_text(laid_over)
    with pytest.raises(UserError, match=r"`make demo`.* RECIPE=recipes/ubi\.yaml"):
        release_folder(tmp_path, "")
    write_json(tmp_path / "models/release/2l/manifest.json", {})
    (tmp_path / "params.yaml").write_text(laid_over)
    with pytest.raises(UserError, match=r"`make run RECIPE=recipes/ubi\.yaml`"):
        release_folder(tmp_path, "")


@pytest.mark.medium
def test_the_error_of_a_release_that_does_not_load_comes_once(tmp_path: Path) -> None:
    write_json(tmp_path / "models/release/2l/manifest.json", {})
    command = [sys.executable, "-m", "slimtower", "serve", "--port", str(free_port())]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
