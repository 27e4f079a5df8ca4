"""Every runner tells Airflow the same about an exit code: a real process, and what engine and cluster report."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from conftest import DEPLOYMENTS, PROJECT
from docker.errors import APIError, NotFound
from fake_cluster import Cluster, ended
from slimtower_dags import docker_job, process_job, tasks
from slimtower_dags.deployment import read_deployment
from slimtower_dags.tasks import RunnerTask, make_task
from slimtower_dags.variables import WRITTEN

Context = Callable[..., dict[str, Any]]
Run = Callable[[int, dict[str, Any]], dict[str, str]]
RETRIED, FAILED, SKIPPED = AirflowException, AirflowFailException, AirflowSkipException
TASK = """
import json, os, signal, sys
open(os.environ["SEEN"], "w").write(json.dumps(dict(os.environ) | {"argv": sys.argv[1:], "python": sys.executable}))
print("the last line says why", flush=True)
code = int(os.environ["CODE"])
os.kill(os.getpid(), signal.SIGKILL) if code == 137 else sys.exit(code)
"""


def task_of(runner: str, monkeypatch: pytest.MonkeyPatch) -> RunnerTask:
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", DEPLOYMENTS[runner])
    return make_task(read_deployment(PROJECT / "dags"), "teach", image="teach")


@pytest.fixture(params=DEPLOYMENTS)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Run:
    """One try of `teach` that ends with the given code; returns the variables that it saw."""
    task = task_of(request.param, monkeypatch)
    if request.param == "kubernetes":
        return in_pod(task, cluster)
    start = in_container if request.param == "docker" else in_process
    return start(task, tmp_path, monkeypatch)


def in_process(task: RunnerTask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A project whose task ends with CODE, run for real."""
    write_task(folder, TASK)
    monkeypatch.setattr(tasks, "PROJECT", folder)
    monkeypatch.setenv("SLIMTOWER_PYTHON", sys.executable)
    monkeypatch.setenv("SEEN", str(folder / "seen.json"))

    def run(code: int, context: dict[str, Any]) -> dict[str, str]:
        monkeypatch.setenv("CODE", str(code))
        task.execute(context)
        return dict(json.loads((folder / "seen.json").read_text()))

    return run


def in_container(task: RunnerTask, folder: Path, monkeypatch: pytest.MonkeyPatch, leftovers: Sequence[str] = ()) -> Run:
    """Docker's operator on an engine that answers as Docker does: no image yet, and containers of the names `left`."""
    created: dict[str, Any] = {}
    on_engine = set(leftovers)
    pulled: list[str] = []

    def pull(name: str, **_: Any) -> Iterator[dict[str, str]]:
        yield {"status": "Pulling"}
        pulled.append(name)

    def inspect(name: str) -> dict[str, Any]:
        assert pulled == [name]
        return {"Id": "sha256:local", "RepoDigests": [f"{name}@sha256:pushed"]}

    def create(**options: Any) -> dict[str, str]:
        assert options["name"] not in on_engine
        on_engine.add(options["name"])
        created.update(options)
        return {"Id": options["name"]}

    def remove(name: str, v: bool, force: bool) -> None:
        if name not in on_engine:
            raise NotFound(name)
        on_engine.remove(name)
        created["removed"] = force and v

    engine = SimpleNamespace(
        images=lambda name: pulled,
        pull=pull,
        inspect_image=inspect,
        create_host_config=lambda **options: options,
        create_container=create,
        attach=lambda **_: iter([b"first\nthe last line says why\n"]),
        start=lambda _: None,
        remove_container=remove,
    )
    monkeypatch.setattr(docker_job.ContainerOperator, "cli", engine)

    def run(code: int, context: dict[str, Any]) -> dict[str, str]:
        engine.wait = lambda _: {"StatusCode": code}
        try:
            task.execute(context)
        finally:
            assert created["removed"] is True
        host = created["host_config"]
        assert (
            host["read_only"] is True and host["cap_drop"] == ["ALL"] and host["security_opt"] == ["no-new-privileges"]
        )
        assert not host["privileged"] and not host["cap_add"]
        writable = {mount["Target"]: mount.get("Source") for mount in host["mounts"]}
        assert writable["/work"] is None and created["environment"].items() >= WRITTEN.items()
        return created["environment"] | {"argv": created["command"]}

    return run


def in_pod(task: RunnerTask, cluster: Cluster) -> Run:
    """Kubernetes' operator and client on a cluster whose pods end with the code."""

    def run(code: int, context: dict[str, Any]) -> dict[str, str]:
        cluster.status = ended(code)
        try:
            task.execute(context)
        finally:
            assert cluster.created and not cluster.pods
        container = cluster.created[-1]["spec"]["containers"][0]
        return {variable["name"]: variable.get("value") for variable in container["env"]} | {"argv": container["args"]}

    return run


def test_success_is_success(run: Run, context: Context) -> None:
    seen = run(0, context())
    assert seen["argv"] == ["teach"]
    assert "SLIMTOWER_MICRO_BATCH" not in seen
    assert not any(name.startswith("AIRFLOW_") for name in seen)


@pytest.mark.parametrize(
    ("code", "outcome"), [(99, SKIPPED), (3, FAILED), (75, RETRIED), (137, RETRIED), (143, RETRIED), (1, FAILED)]
)
def test_an_exit_code_is_skipped_retried_or_failed(code: int, outcome: type, run: Run, context: Context) -> None:
    with pytest.raises(AirflowException) as caught:
        run(code, context())
    assert caught.type is outcome
    assert f"exit code {code}" in str(caught.value)


def test_a_container_that_cannot_be_removed_fails_no_task(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = in_container(task_of("docker", monkeypatch), tmp_path, monkeypatch)
    engine: Any = docker_job.ContainerOperator.cli
    remove = engine.remove_container

    def busy(name: str, v: bool, force: bool) -> None:
        remove(name, v, force)
        raise APIError("500 Server Error: container is in use")

    engine.remove_container = busy
    assert run(0, context())["argv"] == ["teach"]


def test_a_killed_task_gets_one_smaller_try(run: Run, context: Context) -> None:
    store: dict[str, Any] = {}
    with pytest.raises(AirflowException) as first:
        run(137, context(1, store))
    assert first.type is RETRIED
    assert run(0, context(2, dict(store)))["SLIMTOWER_MICRO_BATCH"] == "8"
    with pytest.raises(AirflowException) as second:
        run(137, context(2, store))
    assert second.type is FAILED
    assert "SLIMTOWER_MICRO_BATCH" not in run(0, context(3, store))  # cleared by hand, after more memory


def test_a_smaller_try_stays_small_after_a_transient_failure(run: Run, context: Context) -> None:
    store: dict[str, Any] = {}
    for number, code in ((1, 137), (2, 75)):
        with pytest.raises(RETRIED):
            run(code, context(number, store))
    assert run(0, context(3, dict(store)))["SLIMTOWER_MICRO_BATCH"] == "8"
    # the third ended without a code, as with a lost node
    with pytest.raises(AirflowException) as last:
        run(137, context(4, store))
    assert last.type is FAILED
    assert "SLIMTOWER_MICRO_BATCH" not in run(0, context(5, store))


@pytest.mark.parametrize("code", [0, 3, 1])
def test_what_ended_after_it_was_killed_begins_anew_if_it_is_cleared(run: Run, context: Context, code: int) -> None:
    store: dict[str, Any] = {}
    with pytest.raises(RETRIED):
        run(137, context(1, store))
    with pytest.raises(FAILED) if code else nullcontext():
        run(code, context(2, store))
    assert "SLIMTOWER_MICRO_BATCH" not in run(0, context(3, store))


def test_the_deployments_environment_counts_before_the_workers(
    run: Run, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "SLIMTOWER_REPO", "SLIMTOWER_REMOTE"):
        monkeypatch.setenv(name, "of the worker")
    own = {"SLIMTOWER_REMOTE": "s3://own", "SLIMTOWER_REPO": ""}
    monkeypatch.setattr(RunnerTask, "job", with_environment(RunnerTask.job, own))
    seen = run(0, context())
    assert (seen["SLIMTOWER_REMOTE"], seen["SLIMTOWER_REPO"]) == ("s3://own", "")


def with_environment(job: Callable[..., Any], more: dict[str, str]) -> Callable[..., Any]:
    """A task's job, with more variables in the deployment's `environment`."""

    def made(task: RunnerTask, context: Any) -> Any:
        task.environment = task.environment | more
        return job(task, context)

    return made


def test_a_process_sees_the_project_and_not_airflow(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/airflow/packages")
    monkeypatch.setenv("VIRTUAL_ENV", "/airflow")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    seen = in_process(task_of("process", monkeypatch), tmp_path, monkeypatch)(0, context())
    assert seen["python"] == sys.executable
    assert seen["PATH"].startswith(str(Path(sys.executable).parent))
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "AIRFLOW_HOME"} & set(seen)
    assert seen["AWS_ACCESS_KEY_ID"] == "key"


def test_a_process_without_the_projects_interpreter_fails_at_once(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_PYTHON", "python3")
    task = task_of("process", monkeypatch)
    with pytest.raises(AirflowFailException, match="SLIMTOWER_PYTHON is 'python3'; give the absolute path"):
        task.execute(context())


def test_the_last_line_of_a_container_is_the_reason_that_airflow_shows(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NOT_LISTED", "x")
    for name, value in {"PGPASSWORD": "of Airflow", "TASK_PGPASSWORD": "", "TASK_MILVUS_TOKEN": "of tasks"}.items():
        monkeypatch.setenv(name, value)
    run = in_container(task_of("docker", monkeypatch), tmp_path, monkeypatch)
    with pytest.raises(AirflowFailException, match="wrong data or settings: the last line says why"):
        run(3, context())
    seen = run(0, context())
    assert seen["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert seen["SLIMTOWER_IMAGE_DIGEST"] == "sha256:pushed"
    assert not {"NOT_LISTED", "PGPASSWORD"} & set(seen) and seen["MILVUS_TOKEN"] == "of tasks"


def test_a_retry_never_runs_beside_the_container_of_a_dead_worker(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_REMOTE", "s3://b/one")
    name = docker_job.container_name(context(1), "s3://b/one")
    other_run = context(1)
    other_run["ti"].run_id = "another"
    other_names = {
        docker_job.container_name(other_run, "s3://b/one"),
        docker_job.container_name(context(1, task_id="embed"), "s3://b/one"),
        docker_job.container_name(context(1), "s3://b/two"),
    }
    assert name not in other_names and name.startswith("slimtower-retrain-teach-")
    run = in_container(task_of("docker", monkeypatch), tmp_path, monkeypatch, leftovers=[name])
    run(0, context(2))


def test_a_container_is_gone_before_airflow_kills_the_worker(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = task_of("docker", monkeypatch).job(context())
    job.stop()  # nothing was started
    requests: list[Any] = []

    def remove(name: str, v: bool, force: bool) -> None:
        requests.append((name, force))
        raise NotFound(name)

    def ended(name: str, timeout: int) -> None:
        requests.append((name, timeout < 5))
        raise APIError("it has ended")

    engine = SimpleNamespace(stop=ended, remove_container=remove)
    monkeypatch.setattr(docker_job.ContainerOperator, "cli", engine)
    job.operator.container = {"Id": "1"}
    job.stop()
    assert requests == [("1", True), ("1", True)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_with_its_worker(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('stopped').touch(), sys.exit(143)))\n"
        "pathlib.Path('started').touch()\n"
        "time.sleep(60)\n",
    )
    worker = (
        "import logging, pathlib, sys\n"
        "from slimtower_dags.process_job import ProcessJob\n"
        "ProcessJob('teach', pathlib.Path.cwd(), {}, logging.getLogger()).wait()\n"
    )
    path = {"SLIMTOWER_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT / "dags")}
    with subprocess.Popen([sys.executable, "-c", worker], cwd=tmp_path, env=os.environ | path) as process:
        assert appears(tmp_path / "started")
        process.send_signal(signal.SIGKILL)
    assert appears(tmp_path / "stopped")


@pytest.mark.parametrize("session", [False, True], ids=["in its session", "in one of its own, as DVC is started"])
def test_what_a_killed_task_left_ends_with_it_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: bool
) -> None:
    """It holds the output open."""
    write_task(
        tmp_path,
        "import os, pathlib, signal, subprocess\n"
        f"child = subprocess.Popen(['sleep', '60'], start_new_session={session})\n"
        "pathlib.Path('child').write_text(str(child.pid))\n"
        "print('so far', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    monkeypatch.setenv("SLIMTOWER_PYTHON", sys.executable)
    began = time.monotonic()
    assert process_job.ProcessJob("teach", tmp_path, {}, logging.getLogger()).wait() == (137, "so far")
    assert time.monotonic() - began < 30
    last = time.monotonic() + 10
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int((tmp_path / "child").read_text()))
        while child.status() != psutil.STATUS_ZOMBIE:  # which it stays if nobody asks for its code
            assert time.monotonic() < last
            time.sleep(0.05)


def write_task(project: Path, text: str) -> None:
    """What `python -m pipeline.task` runs there."""
    (project / "pipeline").mkdir()
    (project / "pipeline/task.py").write_text(text)


def appears(path: Path) -> bool:
    """Whether a file is there, at the latest half a minute from now."""
    last = time.monotonic() + 30
    while not path.exists() and time.monotonic() < last:
        time.sleep(0.05)
    return path.exists()
