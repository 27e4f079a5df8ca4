"""Retraining as deployed: every stage in its own container, one of them killed, and a champion that answers.

The tests run in order, on one deployment: a first run with a killed task, its promotion, a run with nothing new.
"""

import subprocess
import time
import urllib.error
from collections import Counter
from typing import Any

import mlflow
import pytest
from deployment import Deployment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]
STUDENTS = ("1l", "static")
MINED = ("candidates", "mine-click", "mine-judged", "mine-relevance")
ONCE = ("ingest", *MINED, "teach-dense", "generate", "embed", "index", "evaluate")
STAGES = {*ONCE, *(f"{stage}-{student}" for stage in ("distill", "release") for student in STUDENTS)}
FINISHED = {"success", "failed"}
VICTIM = "embed"  # its container is killed


@pytest.fixture(scope="module")
def airflow(images: None, deployment: Deployment) -> Deployment:
    """The deployment with its DAGs loaded and the first data on S3."""
    deployment.put_data()
    deployment.until(lambda: {dag["dag_id"] for dag in deployment.ask("dags")["dags"]} >= {"retrain", "promote"})
    assert deployment.ask("importErrors")["total_entries"] == 0
    return deployment


@pytest.fixture(autouse=True)
def logged_in(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", deployment.mlflow)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "pipeline")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", deployment.settings["MLFLOW_TRACKING_PASSWORD"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", deployment.endpoint)


def start(deployment: Deployment, run: str, dag: str = "retrain") -> None:
    deployment.ask(f"dags/{dag}/dagRuns", {"dag_run_id": run, "logical_date": None})


def tasks(deployment: Deployment, run: str, dag: str = "retrain") -> dict[str, dict[str, Any]]:
    """Task instances of a run by task id."""
    instances = deployment.ask(f"dags/{dag}/dagRuns/{run}/taskInstances?limit=100")["task_instances"]
    return {task["task_id"]: task for task in instances}


def state(deployment: Deployment, run: str, dag: str = "retrain") -> str:
    return str(deployment.ask(f"dags/{dag}/dagRuns/{run}")["state"])


def finish(deployment: Deployment, run: str, dag: str = "retrain", minutes: float = 60) -> dict[str, str]:
    """Wait until a run ends well; task id -> state. AssertionError with the failed tasks' logs otherwise."""
    deployment.until(lambda: state(deployment, run, dag) in FINISHED, minutes * 60)
    instances = tasks(deployment, run, dag)
    failed = [name for name, task in instances.items() if task["state"] == "failed"]
    assert not failed and state(deployment, run, dag) == "success", "\n".join(
        f"--- {name}: {log(deployment, dag, run, instances[name])}" for name in failed
    )
    return {name: str(task["state"]) for name, task in instances.items()}


def log(deployment: Deployment, dag: str, run: str, task: dict[str, Any], attempt: int = 0) -> str:
    """The end of what a try of a task wrote, of the last one by default."""
    try:
        path = f"dags/{dag}/dagRuns/{run}/taskInstances/{task['task_id']}/logs/{attempt or task['try_number']}"
        answer = deployment.ask(path)
    except urllib.error.HTTPError as error:
        return f"no log: {error}"
    lines = (f"{line.get('event', line)} {line.get('error_detail') or ''}" for line in answer["content"])
    return "\n".join(lines)[-6000:]


def stage_runs() -> Counter[str]:
    """MLflow runs of stages, by name of the stage: each start of a stage makes one."""
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    names = [str(run.info.run_name) for run in runs if "mlflow.parentRunId" in run.data.tags]
    return Counter(name.replace("@", "-") for name in names if not name.endswith("(reused)"))


def promoted(deployment: Deployment, earlier_runs: set[str]) -> str:
    """Wait for the run of DAG `promote` that the release's asset starts; returns its id."""

    def new() -> str:
        runs = {run["dag_run_id"] for run in deployment.ask("dags/promote/dagRuns")["dag_runs"]}
        return next(iter(runs - earlier_runs), "")

    return str(deployment.until(new))


def test_a_killed_container_is_tried_again_and_nothing_before_it_is_repeated(airflow: Deployment, engine: str) -> None:
    start(airflow, "first")
    killed = airflow.until(lambda: container_of(engine, airflow, VICTIM), 3600)
    time.sleep(5)  # in the middle of it
    done = {name for name, task in tasks(airflow, "first").items() if task["state"] in FINISHED}
    assert {"ingest", "mine-relevance", "teach-dense"} <= done
    subprocess.run([engine, "kill", killed], check=True, capture_output=True)
    states = finish(airflow, "first")
    assert set(states) == STAGES | {"begin", "publish"} and set(states.values()) == {"success"}
    again = {name: task for name, task in tasks(airflow, "first").items() if task["try_number"] > 1}
    assert again.pop(VICTIM)["try_number"] == 2
    for name, task in again.items():  # a server of this machine was slow
        first = log(airflow, "retrain", "first", task, 1)
        assert name not in done and "exit code 75" in first, f"--- {name}, first try: {first}"
    ran = stage_runs()
    assert set(ran) == STAGES and {ran[name] for name in STAGES - {VICTIM, *again}} == {1}, ran
    assert all(ran[name] <= 2 for name in (VICTIM, *again)), ran


def test_each_step_ran_in_an_image_of_its_own_and_the_release_becomes_the_champion(airflow: Deployment) -> None:
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    digests = {run.data.tags.get("slimtower.image_digest") for run in runs} - {None}
    assert len(digests) >= len({task.partition("-")[0] for task in STAGES})
    run = promoted(airflow, set())
    assert finish(airflow, run, "promote")["promote"] == "success"
    assert mlflow.MlflowClient().get_model_version_by_alias("tiny", "champion").version == "1"


def test_the_champion_of_the_registry_answers_a_query(airflow: Deployment) -> None:
    model = mlflow.pyfunc.load_model("models:/tiny@champion")
    hits = model.predict([{"query": "what is the best way to sharpen my old knife"}], params={"k": 3})
    assert "How to sharpen a knife" in list(hits["titles"][0])


def test_a_run_with_nothing_new_trains_nothing(airflow: Deployment) -> None:
    before, registered = stage_runs(), len(mlflow.MlflowClient().search_model_versions("name='tiny'"))
    start(airflow, "second")
    states = finish(airflow, "second")
    assert {states[stage] for stage in STAGES} == {"skipped"}, states
    assert stage_runs() == before
    assert len(mlflow.MlflowClient().search_model_versions("name='tiny'")) == registered


def container_of(engine: str, deployment: Deployment, stage: str) -> str:
    """Id of the running container of a stage of this deployment, "" while there is none."""
    listed = [engine, "ps", "--filter", f"network={deployment.name}", "--format", "{{.ID}} {{.Image}}"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    containers = dict(reversed(line.split()) for line in lines if len(line.split()) == 2)
    return next((container_id for image, container_id in containers.items() if f"slimtower-{stage}" in image), "")
