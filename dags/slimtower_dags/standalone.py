"""make airflow: Airflow on this machine, its DAGs running the project's own interpreter, until Ctrl-C.

State is in .airflow/ (database, logs, the tasks' remote); delete the folder to start afresh. AIRFLOW_PORT chooses
another port than 8080, SLIMTOWER_DEPLOYMENT another deployment than dags/deployments/laptop.yaml.
"""

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".airflow"
COMMANDS = HOME / "bin"
PASSWORDS = HOME / "passwords.json"
START_S, STOP_S, AWAY_S = 300, 30, 300


def settings(port: str) -> dict[str, str]:
    """Variables of every process; those that are set already are kept."""
    fixed = {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(PASSWORDS),
        # a busy machine makes writers wait for each other; the default of 5 s ends the scheduler
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}?timeout=120",
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "PATH": os.pathsep.join((str(COMMANDS), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
    }
    defaults = {
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # the tasks themselves keep this machine busy
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "SLIMTOWER_DEPLOYMENT": str(ROOT / "dags/deployments/laptop.yaml"),
        "SLIMTOWER_PYTHON": str(ROOT / ".venv/bin/python"),
        "SLIMTOWER_REPO": str(ROOT),
        "SLIMTOWER_REMOTE": str(HOME / "remote"),
        "SLIMTOWER_CACHE": str(ROOT / ".cache/slimtower"),
    }
    return defaults | dict(os.environ) | fixed


def write_command() -> None:
    """Make `airflow`, which Airflow calls by its name, run with this interpreter.

    The script in .airflow-venv names the folder that it was installed in: after a move that is another, or none.
    """
    COMMANDS.mkdir(parents=True, exist_ok=True)
    command = COMMANDS / "airflow"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m airflow "$@"\n')
    command.chmod(0o755)


def main() -> int:
    """Start, print address and login once it answers, then wait."""
    port = os.environ.get("AIRFLOW_PORT") or "8080"
    write_command()
    with contextlib.closing(sqlite3.connect(HOME / "airflow.db")) as database:
        database.execute("pragma journal_mode=wal")  # stays with the file: readers and a writer do not wait
    log = HOME / "airflow.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=settings(port),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"airflow: starting, a minute the first time; its log is {log}", flush=True)
    try:
        if not _answers(server, port, START_S):
            print(f"airflow: did not start within {START_S} s; read {log}", file=sys.stderr)
            return 1
        user, password = next(iter(json.loads(PASSWORDS.read_text()).items()))
        print(f"airflow: http://localhost:{port}  user {user}  password {password}")
        print("airflow: unpause the DAG `retrain`, and last Monday's run starts; Ctrl-C stops everything", flush=True)
        while _answers(server, port, AWAY_S):
            time.sleep(30)
        print(f"airflow: a part of it ended; read {log}, then start it again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(server)


def _answers(server: subprocess.Popen[bytes], port: str, seconds: float) -> bool:
    """Wait until the scheduler and the pages answer; False when they do not within `seconds`."""
    last = time.monotonic() + seconds
    while time.monotonic() < last and server.poll() is None:
        with contextlib.suppress(OSError, ValueError, KeyError, urllib.error.URLError):
            with urllib.request.urlopen(f"http://localhost:{port}/api/v2/monitor/health", timeout=5) as answer:
                parts = json.load(answer)
            if all(parts[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor")):
                return True
        time.sleep(1)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Stop Airflow and every process it started: asked first, so that tasks stop theirs; killed after STOP_S."""
    last = time.monotonic() + STOP_S
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        os.killpg(server.pid, signal.SIGTERM)
        while time.monotonic() < last:
            server.poll()
            os.killpg(server.pid, 0)
            time.sleep(0.5)
        os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
