"""A real `mlflow server` on a port of its own, which a test takes down and brings back."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from serve_process import free_port


class MlflowServer:
    """Its runs outlive it, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it anew, and wait until it answers."""
        self.stop()
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=variables | quiet, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, "it does not answer"
                time.sleep(0.2)

    def stop(self) -> None:
        """Kill it and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
