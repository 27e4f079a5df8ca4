"""Training goes on while the tracking server is away, and what it tracked arrives later: with a real server."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from mlflow_server import MlflowServer
from proxy import Proxy
from silent_server import never_answers, never_connects
from teach_fakes import PARAMS, write_tower, write_world

from pipeline import lineage
from slimtower.common.errors import EXIT_TRANSIENT, TransientError, UserError, guarded
from slimtower.registry import client as registry
from steps.promote.__main__ import main as promote
from steps.teach.run import run as teach
from steps.tracking import runs as tracking
from steps.tracking import stage_run as module
from steps.tracking.stage_run import StageRun, stage_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.faults("MLflow away")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    mlflow_server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    yield mlflow_server
    mlflow_server.stop()


@pytest.fixture(autouse=True)
def tracking_environment(server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("SLIMTOWER_PIPELINE", tmp_path.name)
    monkeypatch.delenv("SLIMTOWER_PARENT_RUN", raising=False)
    monkeypatch.chdir(tmp_path)


def runs() -> dict[str, Any]:
    """The runs of this test by name, the pipeline's as `pipeline`."""
    api = registry.client()
    runs_by_id = {run.info.run_id: run for run in api.search_runs([tracking.experiment_id(api)])}
    pipeline_runs = [
        run
        for run in runs_by_id.values()
        if run.data.tags.get("slimtower.pipeline") == os.environ["SLIMTOWER_PIPELINE"]
    ]
    assert len(pipeline_runs) == 1
    below = [
        run for run in runs_by_id.values() if run.data.tags.get("mlflow.parentRunId") == pipeline_runs[0].info.run_id
    ]
    return {"pipeline": pipeline_runs[0]} | {run.info.run_name: run for run in below}


class Disturbed:
    """A stage's run; at some of the calls with metrics something happens to the server."""

    def __init__(self, run: StageRun, events: Mapping[int, Any]) -> None:
        self.run, self.events, self.calls, self.seen = run, events, 0, list[tuple[Any, ...]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.metrics({name: value}, step)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        self.seen.extend((name, step or 0, value) for name, value in values.items())
        self.calls += 1
        self.events.get(self.calls, lambda: None)()
        self.run.metrics(values, step)


def test_without_its_server_a_pipeline_ends_well_and_the_next_one_sends_all(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIMTOWER_RECIPE", "recipes/beir.yaml")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted/secret+key")
    with stage_run("teach@dense", {"epochs": 1}) as run:
        run.metrics({"loss": 2.0, "nDCG@10": 0.5}, step=1)
        run.param("epochs", 2)  # MLflow lets no parameter change
        run.metric("loss", 1.0, step=np.int64(2))
        run.tag("slimtower.choice", "static planted/secret+key")
        Path("report.json").write_text("first")
        run.artifact(Path("report.json"))
        run.built_model("teacher", "digest", lambda target: (target.mkdir(), (target / "weights").write_text("w")))
        with pytest.raises(TransientError, match="is the server up"):
            assert run.run_id
    (message,) = capfd.readouterr().err.splitlines()
    assert "teach@dense goes on, and what it tracks is sent later, at the latest by the next run" in message
    Path("report.json").unlink()
    with pytest.raises(UserError, match="the cause") as caught, stage_run("mine@click", {}):
        raise UserError("the cause")
    assert caught.value.exit_code == 3, "the server, which is away, does not make it worth another try"
    killed = multiprocessing.get_context("fork").Process(target=end_by_a_kill)
    killed.start()
    killed.join()
    entries = {"teach@dense": {"cmd": "x", "deps": [], "outs": [{"path": "report.json", "md5": "m1"}]}}
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))
    Path("params.yaml").write_text("a: 1\n")
    assert "not in MLflow yet: " in lineage.finish_or_wait(failed=False, names=["teach@dense"])
    Path("dvc.lock").write_text("")  # of the next run
    code_of_promote(monkeypatch, capfd)

    assert not [path for path in module.spools().rglob("*") if path.is_file() and b"planted" in path.read_bytes()]
    monkeypatch.delenv("SLIMTOWER_RECIPE")
    with pytest.raises(TransientError):
        lineage.send_finished()
    server.start()
    lineage.send_finished()
    assert "teach@dense: http://" in (message := capfd.readouterr().err) and "would not have 1 of its calls" in message
    assert not lineage.waits() and not list(module.spools().iterdir())
    runs_by_name, api = runs(), registry.client()
    status = {name: run.info.status for name, run in runs_by_name.items()}
    assert status == {
        "pipeline": "FINISHED", "teach@dense": "FINISHED", "mine@click": "FAILED", "embed": "KILLED"
    }  # fmt: skip
    assert runs_by_name["pipeline"].info.run_name.startswith("beir ")  # not what it is called that sends it
    teach = runs_by_name["teach@dense"]
    assert teach.data.params == {"epochs": "1"} and teach.data.metrics == {"loss": 1.0, "nDCG_at_10": 0.5}
    assert [m.value for m in api.get_metric_history(teach.info.run_id, "loss")] == [2.0, 1.0]
    assert (
        teach.data.tags["slimtower.choice"] == "static ***" and '"report.json":"m1"' in teach.data.tags["slimtower.md5"]
    )
    assert len(teach.outputs.model_outputs) == 1
    assert teach.info.end_time < runs_by_name["pipeline"].info.end_time
    assert runs_by_name["embed"].data.metrics == {"rows": 7.0}
    dvc_lock = api.download_artifacts(runs_by_name["pipeline"].info.run_id, "dvc.lock")
    assert set(yaml.safe_load(Path(dvc_lock).read_text())["stages"]) == {"teach@dense"}


def end_by_a_kill() -> None:
    """Be killed after a measurement."""
    run = StageRun("embed")
    run.metric("rows", 7.0)
    os.kill(os.getpid(), signal.SIGKILL)


def code_of_promote(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Promotion needs the registry: one line, and the code that lets a scheduler try again."""
    Path("params.yaml").write_bytes((Path(__file__).parents[2] / "params.yaml").read_bytes())
    monkeypatch.setattr(sys, "argv", ["steps.promote", "--rollback"])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        guarded(promote)
    assert ended.value.code == EXIT_TRANSIENT
    (message,) = capfd.readouterr().err.splitlines()
    assert (
        message.startswith("slimtower: http://") and "not reached" in message and message.endswith("is the server up?")
    )


def test_a_training_outlives_a_server_that_comes_back(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_WAIT", 0.0)
    monkeypatch.setattr(module, "_TIME_SHARE", 0)
    world, output = tmp_path / "world", tmp_path / "teacher"
    write_tower(world / "model")
    write_world(world)
    params = PARAMS.model_copy(update={"base": str(world / "model/tower")})
    with stage_run("teach@dense", {"epochs": 2, "small": {"layers": [0, 1]}}) as run:
        disturbed = Disturbed(run, {2: server.stop, 5: server.start})
        teach(world / "ingest", world / "mine", output, params, disturbed)
        assert disturbed.calls > 6
    tracked, api = runs()["teach@dense"], registry.client()
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params == {"epochs": "2", "small.layers": "[0, 1]"}
    history = {name: [(m.step, m.value) for m in api.get_metric_history(tracked.info.run_id, name)]
            for name in tracked.data.metrics}  # fmt: skip
    seen: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in disturbed.seen:
        seen.setdefault(name, []).append((step, value))
    assert {name: sorted(rows) for name, rows in history.items()} == {name: sorted(rows) for name, rows in seen.items()}
    assert [file.path for file in api.list_artifacts(tracked.info.run_id)] == ["report.json"]
    (model,) = tracked.outputs.model_outputs
    artifacts = server.folder / "artifacts" / tracked.info.experiment_id / "models" / model.model_id / "artifacts"
    names = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
    tower = output / "tower"
    assert names == {str(path.relative_to(tower)) for path in tower.rglob("*") if path.is_file()}
    messages = [line for line in capfd.readouterr().err.splitlines() if "tracking: " in line]
    assert len(messages) == 2 and "teach@dense goes on" in messages[0] and "there again" in messages[1]
    assert not lineage.waits()


@pytest.fixture
def proxy(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """In front of the server, which is there."""
    server.start()
    mlflow_proxy = Proxy(server.port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_proxy.url)
    yield mlflow_proxy
    mlflow_proxy.speaks.set()
    mlflow_proxy.close()
    server.stop()


PAGES = [(404, "<html>no such page</html>"), (200, "<html>please log in</html>"), (500, "<html>broken</html>")]


@pytest.mark.parametrize("page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.nightly) for page in PAGES[1:])])
def test_a_training_outlives_a_proxy_that_answers_for_the_server(
    proxy: Proxy, page: tuple[int, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_WAIT", 3600.0)
    Path("report.json").write_text("first")
    with stage_run("teach@dense", {"epochs": 1}) as run:
        run.metric("loss", 3.0, step=1)
        capfd.readouterr()
        proxy.page = page
        run.metric("loss", 2.0, step=2)
        run.tag("slimtower.choice", "static")
        run.artifact(Path("report.json"))
        run.built_model("teacher", "digest", lambda target: (target.mkdir(), (target / "weights").write_text("w")))
    (message,) = [line for line in capfd.readouterr().err.splitlines() if "tracking: " in line]
    assert "teach@dense goes on, and what" in message
    assert "not in MLflow yet: " in lineage.finish_or_wait(failed=False, names=[])
    if page[0] < 500:
        assert "does not answer as MLflow" in message and page[1] in message
        with pytest.raises(UserError, match=r"cannot be used for tracking .* fix MLFLOW_TRACKING_URI") as caught:
            StageRun("mine@click")
        assert not isinstance(caught.value, TransientError)
    assert lineage.waits()
    proxy.page = None
    lineage.send_finished()
    assert not lineage.waits()
    runs_by_name = runs()
    assert {name: run.info.status for name, run in runs_by_name.items()} == {
        "pipeline": "FINISHED", "teach@dense": "FINISHED"
    }  # fmt: skip
    teach, api = runs_by_name["teach@dense"], registry.client()
    history = [(m.step, m.value) for m in api.get_metric_history(teach.info.run_id, "loss")]
    assert history == [(1, 3.0), (2, 2.0)] and teach.data.tags["slimtower.choice"] == "static"
    assert [file.path for file in api.list_artifacts(teach.info.run_id)] == ["report.json"]
    assert len(teach.outputs.model_outputs) == 1


def test_what_a_proxy_finds_too_large_is_told_and_all_else_is_sent(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_WAIT", 3600.0)
    Path("large.json").write_text("1" * 20_000)
    Path("report.json").write_text("1")
    Path("params.yaml").write_text("#" * 20_000)
    proxy.limit = 10_000
    with stage_run("teach@dense", {"epochs": 1}) as run:
        run.artifact(Path("large.json"))
        run.metric("loss", 3.0, step=1)
        run.artifact(Path("report.json"))
    messages = capfd.readouterr().err
    assert "413 Client Error" in messages and "would not have 1 of its calls" in messages
    lineage.finish(names=[])
    assert "lineage: params.yaml is not attached: artefact store of http" in capfd.readouterr().err
    assert not lineage.waits()
    runs_by_name, api = runs(), registry.client()
    assert {run.info.status for run in runs_by_name.values()} == {"FINISHED"}
    teach = runs_by_name["teach@dense"].info.run_id
    assert [file.path for file in api.list_artifacts(teach)] == ["report.json"]


def test_a_line_about_what_waits_names_its_folder(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with stage_run("teach@dense", {}):
        pass
    (folder,) = module.spools().iterdir()
    assert str(folder) in capfd.readouterr().err
    with pytest.raises(TransientError, match=f"not reached.*is the server up.*{folder}"):
        lineage.send_finished()
    message = lineage.finish_or_wait(failed=False, names=[])
    (ended,) = (spool for spool in module.spools().iterdir() if spool != folder)
    assert message.endswith(f"sends {ended}")

    def unknown(spool: Any) -> None:
        raise AttributeError("'MlflowRun' object has no attribute 'newer'")

    module.send_each("stage", unknown)  # as other code wrote it
    assert folder.is_dir()
    assert f"no attribute 'newer'; to forget what this is about, delete {folder}" in capfd.readouterr().err


def test_what_waits_for_a_server_is_found_with_another_login_and_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    def where(uri: str, experiment: str = "") -> Path:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        if experiment:
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", experiment)
        else:
            monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        return module.spools()

    spellings = ["http://pipeline:old@mlflow:5000", "http://pipeline:new@mlflow:5000/", "http://MLflow:5000"]
    assert len({where(uri, name) for uri in spellings for name in ("", "slimtower")}) == 1
    other_servers = (
        "http://mlflow:5001",
        "https://mlflow:5000",
        "http://mlflow:5000/b",
        "sqlite:///a.db",
        "sqlite:///b.db",
    )
    assert len({*map(where, other_servers), where(spellings[2]), where(spellings[2], "x")}) == 7


@pytest.mark.parametrize("silent", [never_answers, never_connects])
def test_a_server_that_keeps_silent_costs_a_stage_a_short_wait_at_both_ends(
    silent: Callable[[], AbstractContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """MLflow's client alone would wait 30 seconds at each request, and try each four times."""
    monkeypatch.setattr(registry, "_SOON", 0.5)
    started = time.monotonic()
    with silent() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        with stage_run("teach@dense", {"epochs": 1}) as run:
            for step in range(100):
                run.metric("loss", 1.0, step=step)
        assert 1.0 < time.monotonic() - started < 8
        assert lineage.finish_or_wait(failed=False, names=[]).startswith("not in MLflow yet: http://")
        with pytest.raises(TransientError, match=r"no answer within 0\.5 seconds"):
            lineage.send_finished()
        assert lineage.waits()
    assert time.monotonic() - started < 12
    (message,) = [line for line in capfd.readouterr().err.splitlines() if "tracking: " in line]
    assert "no answer within 0.5 seconds; is the server up?; teach@dense goes on, and what it tracks" in message


def test_an_end_that_finds_no_room_on_the_disk_is_not_said_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text("ingest: {}\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    message = lineage.finish_or_wait(failed=False, names=[])
    assert message.startswith("not in MLflow: ") and "no room to keep it for later: free some, then run" in message
    assert not lineage.waits()


@pytest.mark.nightly
def test_a_server_that_falls_silent_costs_a_stage_one_call_of_mlflows(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SOON", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with stage_run("teach@dense", {"epochs": 1}) as run:
        run.metric("loss", 3.0, step=0)
        proxy.speaks.clear()
        started = time.monotonic()
        for step in range(1, 20):
            run.metric("loss", 2.0, step=step)
        assert 2.0 <= time.monotonic() - started < 8
        started = time.monotonic()
    assert 0.5 <= time.monotonic() - started < 5
    proxy.speaks.set()
    lineage.send_finished()
    api, teach = registry.client(), runs()["teach@dense"]
    assert teach.info.status == "FINISHED"
    assert {m.step for m in api.get_metric_history(teach.info.run_id, "loss")} == set(range(20))
