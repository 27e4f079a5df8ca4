"""MLflow: one parent a pipeline, a child a stage, and reused stages linked to their makers."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import lineage
from slimtower.common.errors import UserError
from slimtower.registry import client as registry
from steps.evaluate.params import HEADLINE
from steps.promote.lineage import _stage_runs
from steps.promote.registry import Registry
from steps.tracking import run_ids
from steps.tracking import runs as tracking
from steps.tracking.run_ids import open_parent, pipeline_folder, pipeline_run
from steps.tracking.stage_run import stage_run

pytestmark = pytest.mark.medium


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("SLIMTOWER_PARENT_RUN", raising=False)
    (tmp_path / "params.yaml").write_text("a: 1\n")
    return tmp_path


def lock(stages: dict[str, str]) -> None:
    entries = {}
    for name, md5 in stages.items():
        Path("out", *name.split("@")).mkdir(parents=True, exist_ok=True)
        out = {"path": f"out/{name.replace('@', '/')}", "md5": md5}
        entries[name] = {"cmd": "x", "deps": [], "outs": [out]}
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))


def outs(tags: dict[str, str]) -> dict[str, str]:
    """What a run's tag says that it wrote."""
    return dict(json.loads(tags["slimtower.md5"])["outs"])


def named(api: Any) -> dict[str, Any]:
    """Runs by name, a pipeline's without its commit and time."""
    runs = api.search_runs([tracking.experiment_id(api)])
    return {re.sub(r"^demo \w+\+? \d{4}-\d\d-\d\d \d\d:\d\d$", "demo", run.info.run_name): run for run in runs}


def test_runs_parents_metrics_models_and_restored_links(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = project / "model"
    model.mkdir()
    (model / "weights.safetensors").write_bytes(b"x")

    monkeypatch.setenv("SLIMTOWER_PIPELINE", "first")
    with stage_run("teach", {"epochs": 1, "small": {"layers": [0, 1]}}) as run:
        run.metric("loss", 2.0, step=1)
        run.metric("loss", 1.0, step=2)
        run.metrics({"nDCG@10": 0.5, "R(rel=2)@100": 0.1})
        run.model(model, "teacher")
    with stage_run("distill@2l", {}):
        pass
    lock({"teach": "m1", "distill@2l": "m2"})
    assert "2 stages ran, 0 reused" in lineage.finish()

    api = registry.client()
    experiment = tracking.experiment_id(api)
    runs = named(api)
    assert set(runs) == {"demo", "teach", "distill@2l"}
    parent = runs["demo"].info.run_id
    assert {runs[name].data.tags["mlflow.parentRunId"] for name in ("teach", "distill@2l")} == {parent}
    teach = runs["teach"]
    assert [m.value for m in api.get_metric_history(teach.info.run_id, "loss")] == [2.0, 1.0]
    assert teach.data.metrics["nDCG_at_10"] == 0.5
    assert teach.data.metrics["R_rel_2_at_100"] == 0.1
    assert teach.data.params == {"epochs": "1", "small.layers": "[0, 1]"}
    assert outs(teach.data.tags) == {"out/teach": "m1"}
    logged = api.search_logged_models([experiment])
    assert [m.source_run_id for m in logged] == [teach.info.run_id]
    assert (project / "mlartifacts" / "models" / logged[0].model_id / "artifacts" / "weights.safetensors").is_file()

    monkeypatch.setenv("SLIMTOWER_PIPELINE", "second")
    with stage_run("distill@2l", {}):
        pass
    lock({"teach": "m1", "distill@2l": "m3", "distill@dropped": "m4"})
    Path("out/distill/dropped").rmdir()
    assert "1 stage ran, 1 reused" in lineage.finish()
    reused = next(run for run in api.search_runs([experiment]) if run.info.run_name == "teach (reused)")
    assert reused.data.tags["slimtower.made_by"] == teach.info.run_id
    assert reused.data.tags["mlflow.parentRunId"] != parent


def test_data_sets_are_inputs_of_the_pipeline_and_of_the_stages_that_read_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inputs(run: Any) -> dict[str, str]:
        return {dataset_input.dataset.name: dataset_input.dataset.digest for dataset_input in run.inputs.dataset_inputs}

    monkeypatch.setenv("SLIMTOWER_PIPELINE", "first")
    with stage_run("ingest", {}) as run:
        run.dataset("api", "d" * 64, {"documents": 3, "queries": {"test": 2}})
    for stage in ("teach", "other"):
        with stage_run(stage, {}):
            pass
    lock({"ingest": "m1", "teach": "m2", "other": "m3"})
    entries = yaml.safe_load(Path("dvc.lock").read_text())
    entries["stages"]["teach"]["deps"] = [{"path": "data/ingest/corpus.parquet", "md5": "m1"}]
    Path("dvc.lock").write_text(yaml.safe_dump(entries))
    lineage.finish()
    runs = named(registry.client())
    assert [inputs(runs[name]) for name in ("demo", "ingest", "teach", "other")] == [*[{"api": "d" * 12}] * 3, {}]
    [dataset_input] = runs["demo"].inputs.dataset_inputs
    assert json.loads(dataset_input.dataset.profile) == {"documents": 3, "queries.test": 2}

    monkeypatch.setenv("SLIMTOWER_PIPELINE", "second")
    monkeypatch.setenv("SLIMTOWER_RECIPE", "recipes/beir.yaml")
    lineage.finish()
    runs = {name.partition(" ")[0]: run for name, run in named(registry.client()).items() if name not in runs}
    assert set(runs) == {"beir", "ingest", "teach", "other"}
    assert inputs(runs["beir"]) == inputs(runs["ingest"]) == inputs(runs["teach"]) == {"api": "d" * 12}


def test_a_pipelines_run_shows_the_headline_and_the_report_of_its_evaluation(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    students = {"index": "dense", "teacher": {"dense": {"base": "https://login:planted-secret@x/small"}}}
    Path("params.yaml").write_text(yaml.safe_dump({"teach": students, "distill": {"students": ["static", "2l"]}}))
    headline = {name: float(number) for number, name in enumerate(HEADLINE)}
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "first")
    with stage_run("ingest", {}) as run:
        run.dataset("api", "d" * 64, {})
    with stage_run("evaluate", {}) as run:
        run.metrics(headline | {"nDCG_at_10/static": 0.5})
        run.tag(tracking.NOTE, "**Yes.**")
    lock({"ingest": "m1", "evaluate": "m2"})
    lineage.finish()
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "reuses both")
    lineage.finish()
    lineage.finish()  # a task may be run again
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "fails")
    lineage.finish(failed=True)
    api = registry.client()
    data_by_run = {
        run.data.tags.get("slimtower.pipeline"): run.data for run in api.search_runs([tracking.experiment_id(api)])
    }
    for pipeline in ("first", "reuses both"):
        assert data_by_run[pipeline].metrics == headline
        assert data_by_run[pipeline].tags[tracking.NOTE] == "**Yes.**"
        described = {"datasets": "api", "teacher": "https://***@x/small", "students": "static, 2l"}
        assert data_by_run[pipeline].params == described
    assert data_by_run["fails"].metrics == {} and tracking.NOTE not in data_by_run["fails"].tags
    assert api.get_experiment(tracking.experiment_id(api)).tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_plain_repro_is_finished_afterwards_and_a_scheduled_run_left_to_its_tasks(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "of a process that is gone")
    with stage_run("teach", {}):
        pass
    lock({"teach": "m1"})
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "another")
    api, rwlock = registry.client(), Path(".dvc/tmp/rwlock")
    rwlock.parent.mkdir(parents=True)
    rwlock.write_text(json.dumps({"/data/embed": {"write": {"pid": os.getpid(), "cmd": "dvc repro"}}}))
    lineage.main()
    assert named(api)["demo"].info.status == "RUNNING", "a stage is at work"
    ended = subprocess.Popen(["true"])
    ended.wait()
    rwlock.write_text(json.dumps({"/data/embed": {"read": [{"pid": ended.pid, "cmd": "dvc repro"}]}}))
    lineage.main()
    experiment, runs = tracking.experiment_id(api), named(api)
    assert set(runs) == {"demo", "teach"}
    assert runs["demo"].info.status == "FINISHED"
    assert outs(runs["teach"].data.tags) == {"out/teach": "m1"}
    here = pipeline_folder()
    for key in ("own", "/home/a/tom's project/runs/x", "a 'b' \"c\""):
        plain_run = pipeline_run(api, experiment, key, "commit", "demo", here)
        assert pipeline_run(api, experiment, key, "other", "b", here) == plain_run == open_parent(api, experiment)
        with monkeypatch.context() as scheduled:
            scheduled.setenv("SLIMTOWER_AIRFLOW_RUN", "scheduled__2025-01-01")
            pipeline_run(api, experiment, f"s3://bucket/runs/{key[:3]}", "commit", "demo", here)
        assert open_parent(api, experiment) == plain_run
        with monkeypatch.context() as elsewhere:  # a colleague's, a pod's, or another recipe's
            elsewhere.chdir(tmp_path_factory.mktemp("elsewhere"))
            assert pipeline_run(api, experiment, f"{key} elsewhere", "commit", "demo", pipeline_folder()) != plain_run
        assert open_parent(api, experiment) == plain_run
        api.set_terminated(plain_run, "FINISHED")
        assert open_parent(api, experiment) is None


def test_stages_reach_a_store_that_is_named_relative_to_here_and_none_that_was_deleted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    with stage_run("mine", {}):
        pass
    assert registry.tracking_uri() == f"sqlite:///{Path.cwd() / 'own.db'}"
    assert Path("own.db").is_file()
    api = registry.client()
    api.delete_experiment(tracking.experiment_id(api))
    message = r"'slimtower' was deleted there; restore it .*--experiment-id 1`"
    with pytest.raises(UserError, match=message), stage_run("mine", {}):
        raise AssertionError("not reached")


def test_of_several_tries_the_last_finished_counts(project: Path) -> None:
    for epochs in (1, 2):
        with stage_run("teach", {"epochs": epochs}):
            pass
        time.sleep(0.01)  # MLflow's clock has milliseconds
    with pytest.raises(RuntimeError), stage_run("teach", {"epochs": 3}):
        raise RuntimeError
    lock({"teach": "m1"})
    assert "1 stage ran, 0 reused" in lineage.finish()
    api = registry.client()
    runs = api.search_runs([tracking.experiment_id(api)], "tags.`slimtower.md5` LIKE '%m1%'")
    assert [run.data.params["epochs"] for run in runs] == ["2"]


def test_outputs_need_not_be_here_where_the_stages_are_named(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_AIRFLOW_RUN", "scheduled__2025-01-01")
    monkeypatch.setenv("SLIMTOWER_IMAGE_DIGEST", "sha256:1")
    api = registry.client()
    parent = pipeline_run(api, tracking.experiment_id(api), "s3://bucket/runs/a", "commit", "demo", "")
    assert pipeline_run(api, tracking.experiment_id(api), "s3://bucket/runs/a", "other", "b", "") == parent
    monkeypatch.setenv("SLIMTOWER_PARENT_RUN", parent)
    with stage_run("teach", {}):
        pass
    lock({"teach": "m1", "mine": "m2", "distill@dropped": "m3"})
    root = tmp_path_factory.mktemp("clone")
    Path("dvc.lock").rename(root / "dvc.lock")
    for _ in range(2):  # a task may be run again
        done = lineage.finish(parent, root=root, names=["mine", "teach"])
        assert done == f"1 stage ran, 1 reused; MLflow run {parent}"
    runs = {name: run.data.tags for name, run in named(api).items()}
    assert set(runs) == {"demo", "teach", "mine (reused)"}
    assert outs(runs["teach"]) == {"out/teach": "m1"}
    assert runs["teach"]["slimtower.image_digest"] == "sha256:1"
    assert runs["demo"]["slimtower.airflow_run"] == "scheduled__2025-01-01"
    assert len(runs["demo"]["slimtower.dvc_lock"]) == 64


def test_a_failed_pipeline_keeps_the_lineage_of_what_succeeded(project: Path) -> None:
    with stage_run("teach", {}):
        pass
    with pytest.raises(RuntimeError), stage_run("failing", {}):
        raise RuntimeError
    lock({"teach": "m1", "mine": "m2"})
    lineage.finish(failed=True)
    runs = named(registry.client())
    statuses = {name: run.info.status for name, run in runs.items()}
    assert statuses == {"demo": "FAILED", "teach": "FINISHED", "failing": "FAILED"}
    assert outs(runs["teach"].data.tags) == {"out/teach": "m1"}


def test_more_runs_than_a_page_holds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed try and a good one of four stages, then three pipelines that reuse them all."""
    monkeypatch.setattr(run_ids, "_PAGE", 2)
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "first")
    stages = [f"distill@{layers}l" for layers in range(1, 5)]
    for stage in stages:
        with pytest.raises(RuntimeError), stage_run(stage, {}):
            raise RuntimeError
        time.sleep(0.002)  # MLflow's times are milliseconds
        with stage_run(stage, {}):
            pass
    lock({stage: f"m{stage}" for stage in stages})
    assert "4 stages ran, 0 reused" in lineage.finish()
    api = registry.client()
    experiment = tracking.experiment_id(api)
    parent = pipeline_run(api, experiment, "first", "", "", "")
    stage_runs = _stage_runs(Registry("slimtower"), parent)
    assert {stage: run.info.status for stage, run in stage_runs.items()} == dict.fromkeys(stages, "FINISHED")
    for pipeline in ("second", "third", "fourth"):
        monkeypatch.setenv("SLIMTOWER_PIPELINE", pipeline)
        assert "0 stages ran, 4 reused" in lineage.finish()
        parent = pipeline_run(api, experiment, pipeline, "", "", "")
        linked = _stage_runs(Registry("slimtower"), parent)
        makers = {stage: run.data.tags["slimtower.made_by"] for stage, run in linked.items()}
        assert makers == {stage: run.info.run_id for stage, run in stage_runs.items()}
