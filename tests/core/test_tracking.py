"""MLflow: one parent a pipeline, a child a stage, and reused stages linked to their makers."""

import time
from pathlib import Path

import pytest
import yaml

from pipeline import lineage
from steps.core import tracking
from steps.core.run_ids import open_parent, pipeline_run
from steps.core.stage_run import stage_run

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

    api = tracking.client()
    experiment = tracking.experiment_id(api)
    runs = {run.info.run_name: run for run in api.search_runs([experiment])}
    assert set(runs) == {"pipeline", "teach", "distill@2l"}
    parent = runs["pipeline"].info.run_id
    assert {runs[name].data.tags["mlflow.parentRunId"] for name in ("teach", "distill@2l")} == {parent}
    teach = runs["teach"]
    assert [m.value for m in api.get_metric_history(teach.info.run_id, "loss")] == [2.0, 1.0]
    assert teach.data.metrics["nDCG_at_10"] == 0.5
    assert teach.data.metrics["R_rel_2_at_100"] == 0.1
    assert teach.data.params == {"epochs": "1", "small.layers": "[0, 1]"}
    assert teach.data.tags["out_md5.out/teach"] == "m1"
    logged = api.search_logged_models([experiment])
    assert [m.source_run_id for m in logged] == [teach.info.run_id]
    assert (project / "mlartifacts" / "models" / logged[0].model_id / "artifacts" / "weights.safetensors").is_file()

    monkeypatch.setenv("SLIMTOWER_PIPELINE", "second")
    with stage_run("distill@2l", {}):
        pass
    lock({"teach": "m1", "distill@2l": "m3", "distill@dropped": "m4"})
    Path("out/distill/dropped").rmdir()
    assert "1 stages ran, 1 reused" in lineage.finish()
    reused = next(run for run in api.search_runs([experiment]) if run.info.run_name == "teach (reused)")
    assert reused.data.tags["slimtower.made_by"] == teach.info.run_id
    assert reused.data.tags["mlflow.parentRunId"] != parent


def test_a_plain_repro_is_finished_afterwards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "of a process that is gone")
    with stage_run("teach", {}):
        pass
    lock({"teach": "m1"})
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "another")
    lineage.main()
    api = tracking.client()
    runs = {run.info.run_name: run for run in api.search_runs([tracking.experiment_id(api)])}
    assert set(runs) == {"pipeline", "teach"}
    assert runs["pipeline"].info.status == "FINISHED"
    assert runs["teach"].data.tags["out_md5.out/teach"] == "m1"


def test_a_scheduled_run_is_left_to_its_tasks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = tracking.client()
    experiment = tracking.experiment_id(api)
    own = pipeline_run(api, experiment, "own", "commit")
    monkeypatch.setenv("SLIMTOWER_AIRFLOW_RUN", "scheduled__2025-01-01")
    pipeline_run(api, experiment, "s3://bucket/runs/a", "commit")
    assert open_parent(api, experiment) == own
    api.set_terminated(own, "FINISHED")
    assert open_parent(api, experiment) is None


def test_of_several_tries_the_last_finished_counts(project: Path) -> None:
    for epochs in (1, 2):
        with stage_run("teach", {"epochs": epochs}):
            pass
        time.sleep(0.01)  # MLflow's clock has milliseconds
    with pytest.raises(RuntimeError), stage_run("teach", {"epochs": 3}):
        raise RuntimeError
    lock({"teach": "m1"})
    assert "1 stages ran, 0 reused" in lineage.finish()
    api = tracking.client()
    found = api.search_runs([tracking.experiment_id(api)], "tags.`out_md5.out/teach` = 'm1'")
    assert [run.data.params["epochs"] for run in found] == ["2"]


def test_outputs_need_not_be_here_where_the_stages_are_named(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_AIRFLOW_RUN", "scheduled__2025-01-01")
    monkeypatch.setenv("SLIMTOWER_IMAGE_DIGEST", "sha256:1")
    api = tracking.client()
    parent = pipeline_run(api, tracking.experiment_id(api), "s3://bucket/runs/a", "commit")
    assert pipeline_run(api, tracking.experiment_id(api), "s3://bucket/runs/a", "other") == parent
    monkeypatch.setenv("SLIMTOWER_PARENT_RUN", parent)
    with stage_run("teach", {}):
        pass
    lock({"teach": "m1", "mine": "m2", "distill@dropped": "m3"})
    root = tmp_path_factory.mktemp("clone")
    Path("dvc.lock").rename(root / "dvc.lock")
    for _ in range(2):  # a task may be run again
        done = lineage.finish(parent, root=root, names=["mine", "teach"])
        assert done == f"1 stages ran, 1 reused; MLflow run {parent}"
    runs = {run.info.run_name: run.data.tags for run in api.search_runs([tracking.experiment_id(api)])}
    assert set(runs) == {"pipeline", "teach", "mine (reused)"}
    assert runs["teach"]["out_md5.out/teach"] == "m1"
    assert runs["teach"]["slimtower.image_digest"] == "sha256:1"
    assert runs["pipeline"]["slimtower.airflow_run"] == "scheduled__2025-01-01"
    assert len(runs["pipeline"]["slimtower.dvc_lock"]) == 64


def test_a_failed_pipeline_keeps_the_lineage_of_what_succeeded(project: Path) -> None:
    with stage_run("teach", {}):
        pass
    lock({"teach": "m1", "mine": "m2"})
    lineage.finish(failed=True)
    api = tracking.client()
    runs = {run.info.run_name: run for run in api.search_runs([tracking.experiment_id(api)])}
    assert set(runs) == {"pipeline", "teach"}
    assert runs["pipeline"].info.status == "FAILED"
    assert runs["teach"].data.tags["out_md5.out/teach"] == "m1"


def test_a_failed_stage_is_marked_failed(project: Path) -> None:
    with pytest.raises(RuntimeError), stage_run("mine", {}):
        raise RuntimeError
    api = tracking.client()
    found = api.search_runs([tracking.experiment_id(api)], "tags.`slimtower.stage` = 'mine'")
    assert [run.info.status for run in found] == ["FAILED"]
