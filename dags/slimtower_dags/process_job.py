"""Runner `process`: a task is a process on Airflow's machine, in the project's own Python environment."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from logging import Logger
from pathlib import Path

import psutil
from airflow.sdk.exceptions import AirflowFailException

_TRY = "SLIMTOWER_TRY"  # the variable by which all processes of a try are told from others
LEFT_S = 2  # for what a task left to end by itself
STOP_S = 15  # from asking to killing: a task takes up to ten seconds to stop what it started
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class ProcessJob:
    """`python -m pipeline.task WHAT` with the interpreter SLIMTOWER_PYTHON, in the project's folder."""

    def __init__(self, task_name: str, folder: Path, environment: dict[str, str], log: Logger) -> None:
        python = os.environ.get("SLIMTOWER_PYTHON", "")
        if not Path(python).is_absolute() or not Path(python).exists():
            raise AirflowFailException(
                f"SLIMTOWER_PYTHON is {python!r}; give the absolute path of the project's interpreter, .venv/bin/python"
            )
        self.log, self.id = log, uuid.uuid4().hex
        self.process = subprocess.Popen(
            [python, "-m", "pipeline.task", task_name],
            cwd=folder,
            env=clean(os.environ, python) | environment | {_TRY: self.id},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=end_with_worker,
        )

    def wait(self) -> tuple[int, str]:
        """Pass the output on to the log; returns the exit code and the last line."""
        assert self.process.stdout is not None
        drained = threading.Event()
        threading.Thread(target=self._end_with_it, args=[drained], daemon=True).start()
        last = ""
        for line in self.process.stdout:
            last = line.rstrip() or last
            self.log.info("%s", line.rstrip())
        drained.set()
        code = self.process.wait()
        return (code if code >= 0 else 128 - code), last

    def _end_with_it(self, drained: threading.Event) -> None:
        """End what a killed task left, which would keep its output open, and `wait` waiting."""
        self.process.wait()
        if not drained.wait(LEFT_S):
            self._kill()

    def _kill(self) -> None:
        """Kill all that the task started, in whichever group it is: DVC and its stages are in their own."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(_TRY) == self.id:
                    process.kill()

    def stop(self) -> None:
        """Stop the task, which stops what it started: asked first, killed after STOP_S."""
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._kill()


def end_with_worker() -> None:
    """Let Linux ask this process to stop when Airflow's worker dies, so that none runs on beside its retry."""
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def clean(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Airflow's environment without what would lead the project's interpreter to Airflow's packages or settings."""
    foreign = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {
        name: value
        for name, value in environment.items()
        if name not in foreign and not name.startswith(("AIRFLOW", "_AIRFLOW", "__AIRFLOW"))
    }
    variables["PATH"] = f"{Path(python).parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return variables
