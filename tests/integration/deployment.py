"""containers/compose.yaml, brought up with secrets of its own on free ports."""

import base64
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from serve_process import free_port
from tiny_data import write_tiny

ENGINE = os.environ.get("CONTAINER_ENGINE") or ("docker" if shutil.which("docker") else "podman")


def compose_command() -> list[str] | None:
    """`docker compose`, or podman-compose beside this interpreter; None where there is neither."""
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    installed = Path(sys.executable).with_name("podman-compose")
    program = str(installed) if installed.exists() else shutil.which("podman-compose")
    return [program] if program else None


@dataclass
class Deployment:
    """A compose project of its own: `settings` are what .env holds."""

    project: Path  # a checkout
    bucket: str
    endpoint: str  # of S3, as containers and this machine reach it
    repo: str  # what tasks clone
    name: str = field(default_factory=lambda: f"slimtower-test-{secrets.token_hex(3)}")
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        socket = os.environ["DOCKER_HOST"].removeprefix("unix://")
        self.settings |= {
            "POSTGRES_PASSWORD": f"p@ss word/{secrets.token_hex(8)}",
            "AIRFLOW_ADMIN_PASSWORD": secrets.token_hex(8),
            "AIRFLOW_SECRET_KEY": secrets.token_hex(32),
            "AIRFLOW_FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "MLFLOW_AUTH_ADMIN_PASSWORD": secrets.token_hex(8),
            "MLFLOW_TRACKING_USERNAME": "pipeline",
            "MLFLOW_TRACKING_PASSWORD": secrets.token_hex(8),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
            "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
            "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
            "ARTIFACT_ROOT": f"s3://{self.bucket}/mlflow",
            "SLIMTOWER_REMOTE": f"s3://{self.bucket}/pipeline",
            "SLIMTOWER_REPO": self.repo,
            "DOCKER_SOCKET": socket,
            "DOCKER_GID": str(Path(socket).stat().st_gid),
            "SCHEDULER_USER": "50000" if Path(socket).stat().st_mode & 0o060 == 0o060 else "0",
            "DAGS_PAUSED": "false",
            "NETWORK": self.name,
            "MLFLOW_WORKERS": "1",
            "AIRFLOW_PORT": str(free_port()),
            "MLFLOW_PORT": str(free_port()),
            "POSTGRES_IMAGE": os.environ.get("POSTGRES_IMAGE", "slimtower-test-postgres"),
        }

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.settings['MLFLOW_PORT']}"

    @property
    def airflow(self) -> str:
        return f"http://127.0.0.1:{self.settings['AIRFLOW_PORT']}"

    def put_data(self) -> None:
        """Write the tiny data set to s3://<bucket>/data."""
        client: Any = boto3.client("s3", endpoint_url=self.endpoint)
        folder = write_tiny(self.project.parent / "data")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                client.upload_file(str(path), self.bucket, f"data/{path.relative_to(folder).as_posix()}")

    def compose(self, *words: str, timeout: float = 1800) -> str:
        """Run a compose command; RuntimeError with the end of what it said when it fails."""
        command = compose_command()
        assert command, "conftest skips where there is no compose"
        env_file = self.project / ".env"
        env_file.write_text("".join(f'{key}="{value}"\n' for key, value in self.settings.items()))
        options = ["--project-name", self.name, "--env-file", str(env_file)]
        command += [*options, "--file", str(self.project / "containers" / "compose.yaml"), *words]
        clean = {
            key: value for key, value in os.environ.items() if key not in self.settings and key != "COMPOSE_PROFILES"
        }
        run_options = {"cwd": self.project, "env": clean, "timeout": timeout, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **run_options, capture_output=True, text=True)
        if done.returncode:
            output = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{output}")
        return done.stdout

    def start(self, *services: str) -> None:
        """`up` as the documentation says, then wait for the pages, and for the account that `account` makes."""
        for service in ("mlflow", "airflow-api"):  # podman-compose would build once for each service of the image
            self.compose("build", service)
        for tries_left in (1, 0):  # podman-compose goes on where a container could not be removed in time
            try:
                self.compose("up", "--build", "--detach", *services)
                self._answers(*services)
                return
            except RuntimeError:
                if not tries_left:
                    raise

    def _answers(self, *services: str) -> None:
        self.wait(f"{self.mlflow}/health")
        if not services or "account" in services:
            self.until(self.known)
        if not services:
            self.wait(f"{self.airflow}/api/v2/version")

    def wait(self, url: str, seconds: float = 600) -> None:
        last = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except OSError as error:
                if time.monotonic() > last:
                    raise RuntimeError(f"{url} did not answer: {error}\n{self.logs()}") from error
                time.sleep(1)

    def known(self) -> bool:
        """Whether MLflow knows the pipeline's account."""
        login = f"{self.settings['MLFLOW_TRACKING_USERNAME']}:{self.settings['MLFLOW_TRACKING_PASSWORD']}"
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        url = f"{self.mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60).close()
        except OSError:
            return False
        return True

    def until(self, holds: Callable[[], Any], seconds: float = 600) -> Any:
        """What `holds` returns once it is true; RuntimeError with the logs when it stays false or no server answers."""
        last, last_error = time.monotonic() + seconds, ""
        while time.monotonic() < last:
            try:
                if result := holds():
                    return result
            except OSError as error:
                last_error = f"; at last: {error}"
            time.sleep(2)
        raise RuntimeError(f"waited {seconds:.0f} s in vain{last_error}\n{self.logs()}")

    def inside(self, service: str, *words: str) -> str:
        """What a command prints in a service's container."""
        listed = [ENGINE, "ps", "--quiet", "--filter", f"label=com.docker.compose.project={self.name}"]
        listed += ["--filter", f"label=com.docker.compose.service={service}"]
        [container] = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
        done = subprocess.run([ENGINE, "exec", container, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def logs(self) -> str:
        listed = [ENGINE, "ps", "--all", "--format", "{{.Names}} {{.Status}}", "--filter", f"name={self.name}"]
        lines = subprocess.run(listed, capture_output=True, text=True).stdout.splitlines()
        ends = []
        for line in lines:
            log = subprocess.run([ENGINE, "logs", "--tail", "12", line.split()[0]], capture_output=True, text=True)
            ends.append(f"--- {line}\n{log.stdout[-1500:]}{log.stderr[-1500:]}")
        return "\n".join(ends)

    def stop(self) -> None:
        self.compose("down", "--volumes")

    def login(self, password: str | None = None) -> str:
        """A token of Airflow's REST API. Raises urllib.error.HTTPError for a wrong password."""
        body = {"username": "admin", "password": password or self.settings["AIRFLOW_ADMIN_PASSWORD"]}
        return str(_json("POST", f"{self.airflow}/auth/token", body)["access_token"])

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """One request to Airflow's REST API below /api/v2/."""
        method = method or ("POST" if body is not None else "GET")
        return _json(method, f"{self.airflow}/api/v2/{path}", body, self.login())


def _json(method: str, url: str, body: Any = None, token: str = "") -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
        return json.loads(answer.read() or b"null")
