"""The DAGs as Airflow's parser sees them: no errors, quick, light, and the same graph on every runner."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEPLOYMENTS, PROJECT
from jinja2 import Template
from slimtower_dags.graph import read_graph

PARSE_S = 2.0
# In a process of its own, as the DAG processor parses: what is imported and how long it takes are then the DAGs'.
PARSER = """
import json, sys, time
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
before, began = set(sys.modules), time.process_time()
folder = Path(sys.argv[1])
bag = BundleDagBag(str(folder), bundle_path=folder, bundle_name="dags-folder")
spent = time.process_time() - began
from airflow.serialization.serialized_objects import DagSerialization
def told(task):
    return {"upstream": sorted(task.upstream_task_ids), "rule": task.trigger_rule.value, "pool": task.pool,
            "timeout": task.execution_timeout and task.execution_timeout.total_seconds(),
            "inlets": [asset.name for asset in task.inlets],
            "outlets": [asset.name for asset in task.outlets], "retries": task.retries,
            "shown": task.operator_name,
            "environment": getattr(task, "environment", {}), "image": getattr(task, "image", "")}
print("RESULT" + json.dumps({
    "errors": bag.import_errors, "seconds": spent,
    "imported": sorted({name.partition(".")[0] for name in set(sys.modules) - before}),
    "dags": {name: {task.task_id: told(task) for task in dag.tasks} for name, dag in bag.dags.items()},
    "settings": {name: {"active": dag.max_active_runs, "catchup": dag.catchup, "params": sorted(dag.params)}
                 for name, dag in bag.dags.items()},
    "serialized": {name: DagSerialization.to_dict(dag) for name, dag in bag.dags.items()},
}, default=str))
"""


def parse(deployment: str, **variables: str) -> dict[str, Any]:
    environment = os.environ | {"SLIMTOWER_DEPLOYMENT": deployment} | variables
    command = [sys.executable, "-c", PARSER, str(PROJECT / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.partition("RESULT")[2])
    return result


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def parsed(request: pytest.FixtureRequest) -> dict[str, Any]:
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3-secret-value", "MLFLOW_TRACKING_PASSWORD": "mlflow-secret-value"}
    return parse(DEPLOYMENTS[request.param], **secrets) | {"runner": request.param}


def test_dags_parse_quickly_and_import_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert set(parsed["dags"]) == {"retrain", "promote", "rollback"}
    assert parsed["seconds"] < PARSE_S
    assert not {"torch", "mlflow", "dvc", "numpy", "slimtower", "steps", "kubernetes", "docker"} & set(
        parsed["imported"]
    )


def test_retrain_is_the_graph_of_dvc_yaml_between_begin_and_publish(parsed: dict[str, Any]) -> None:
    recipe = "recipes/click_log.yaml" if parsed["runner"] == "kubernetes" else ""
    graph = read_graph(PROJECT, recipe)
    expected = {
        stage.task_id: sorted(graph.stages[predecessor].task_id for predecessor in graph.direct[address]) or ["begin"]
        for address, stage in graph.stages.items()
    }
    expected |= {"begin": [], "publish": sorted(graph.stages[leaf].task_id for leaf in graph.leaves)}
    tasks = parsed["dags"]["retrain"]
    assert {name: task["upstream"] for name, task in tasks.items()} == expected
    assert {task["rule"] for task in tasks.values()} == {"none_failed"}
    assert {task["shown"] for task in tasks.values()} == {parsed["runner"]}
    assert [name for name, task in tasks.items() if task["outlets"]] == ["publish"]
    assert tasks["begin"]["environment"]["SLIMTOWER_STAGES"].split() == list(graph.stages)
    for address, stage in graph.stages.items():
        assert f"slimtower-{stage.name}" in tasks[stage.task_id]["image"], address


def test_one_run_at_a_time_with_the_documented_params_and_no_task_for_ever(parsed: dict[str, Any]) -> None:
    settings = parsed["settings"]["retrain"]
    assert settings == {"active": 1, "catchup": False, "params": ["data", "recipe", "ref", "since", "until"]}
    tasks = [task for dag in parsed["dags"].values() for task in dag.values() if task["image"]]
    assert {task["timeout"] for task in tasks} == {24 * 3600}


def test_gpu_tasks_share_a_pool_and_must_see_cuda(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["retrain"]
    in_pool = {name for name, task in tasks.items() if task["pool"] == "gpu"}
    asserting = {name for name, task in tasks.items() if "SLIMTOWER_REQUIRE_CUDA" in task["environment"]}
    gpu = {"candidates", "teach-dense", "generate", "embed", "distill-4l"}
    assert in_pool == asserting == (gpu if parsed["runner"] == "kubernetes" else set())


def test_no_secret_reaches_what_airflow_stores(parsed: dict[str, Any]) -> None:
    stored = json.dumps(parsed["serialized"])
    assert "SLIMTOWER_RUN" in stored
    assert "s3-secret-value" not in stored
    assert "mlflow-secret-value" not in stored


def test_promote_by_hand_knows_no_events_and_tells_a_run_that_is_named_from_one_that_called(
    parsed: dict[str, Any],
) -> None:
    environment = parsed["dags"]["promote"]["promote"]["environment"]
    assert parsed["dags"]["promote"]["for-serving"]["inlets"] == []
    announced = Template(environment["SLIMTOWER_ANNOUNCED"])
    assert (announced.render(params={"run": ""}), announced.render(params={"run": "a"})) == ("1", "")


def test_a_person_approves_where_the_deployment_says_so(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["promote"]
    if parsed["runner"] == "kubernetes":
        assert tasks["promote"]["upstream"] == ["approval"]
        assert tasks["approval"]["upstream"] == ["for-serving"]
    else:
        assert tasks["promote"]["upstream"] == ["for-serving"]


def test_the_champion_is_deployed_after_it_was_promoted_where_an_engine_is_named(tmp_path: Path) -> None:
    overlay = tmp_path / "own.yaml"
    overlay.write_text("promote: {deploy_to: 'postgresql://x@host/db'}")
    named = parse(str(overlay))
    assert named["errors"] == {}
    deploy = named["dags"]["promote"]["deploy"]
    assert deploy["upstream"] == ["promote"] and "slimtower-deploy" in deploy["image"]
    assert deploy["environment"]["SLIMTOWER_DEPLOY_TO"] == "postgresql://x@host/db"
    assert deploy["environment"]["SLIMTOWER_RUN"] == named["dags"]["promote"]["promote"]["environment"]["SLIMTOWER_RUN"]
    assert "deploy" not in parse("")["dags"]["promote"]


def test_a_wrong_deployment_is_an_import_error_that_names_the_fix(tmp_path: Path) -> None:
    overlay = tmp_path / "own.yaml"
    for text, message in (
        ("stages: {teech: {cpus: 1}}", "stages.teech is of no step"),
        ("recipe: recipes/click_log.yaml\nvariables: {TEST_FORM: x}", "did you mean variables.TEST_FROM?"),
    ):
        overlay.write_text(text)
        assert message in "".join(parse(str(overlay))["errors"].values())
