"""A real `mlflow server` on a port of its own, which a test takes down and brings back; what may stand before it."""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class MlflowServer:
    """Its runs outlive it, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=kept | quiet, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < until, "it does not answer"
                time.sleep(0.2)

    @property
    def away(self) -> bool:
        """Whether it was stopped, or never started."""
        return self._process is None

    def stop(self) -> None:
        """Kill it and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def gateway(server: str) -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """A URL that passes requests on, and a list: the first status (0: hang up) and body in it is the answer instead."""
    instead: list[tuple[int, bytes]] = []

    class Passes(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = instead[0] if instead else self.passed(given)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PATCH = do_PUT = do_POST

        def passed(self, given: bytes) -> tuple[int, bytes]:
            kept = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            request = urllib.request.Request(f"{server}{self.path}", given or None, kept, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Passes) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}", instead
        made.shutdown()
