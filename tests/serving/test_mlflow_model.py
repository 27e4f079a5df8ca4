"""A release as an MLflow model: logged, loaded without this project and without unpickling, served over HTTP."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from serve_process import free_port

from slimtower.registry import client as registry
from slimtower.serving.release import load_release
from steps.tracking import runs as tracking
from steps.tracking.release_model import log_release, save_model
from steps.tracking.stage_run import stage_run

pytestmark = pytest.mark.medium

QUERIES = ["how to sum the axis", "string window"]
ALONE = {"MLFLOW_TRACKING_URI": "", "PYTHONPATH": "", "MLFLOW_DISABLE_TELEMETRY": "true"}
STRICT_LOADER = """
import sys

def refuse(event, arguments):
    if event == "pickle.find_class":
        raise RuntimeError(f"unpickled {arguments}")

sys.addaudithook(refuse)
import mlflow.pyfunc
import pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
print(model.predict(pd.DataFrame({"query": ["how to sum the axis"]})).to_json())
print(*(name for name in sys.modules if name.split(".")[0] in {"torch", "sentence_transformers"}))
"""


@pytest.fixture(scope="module")
def saved(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mlflow") / "model"
    save_model(released / "models/release/static", target)
    return target


def predicted(model: Path, folder: Path) -> dict[str, Any]:
    """What a model answers to the first query without this project at hand, having loaded neither torch nor pickles."""
    command = [sys.executable, "-c", STRICT_LOADER, str(model)]
    done = subprocess.run(command, cwd=folder, env=os.environ | ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer, loaded = done.stdout.splitlines()[-2:]
    assert loaded == ""
    return {name: values["0"] for name, values in json.loads(answer).items()}


def expected(project: Path, query: str, k: int, dataset: str = "") -> dict[str, list[Any]]:
    hits = load_release(project / "models/release/static").query(query, k, dataset)
    return {"ids": [h.id for h in hits], "scores": [h.score for h in hits], "titles": [h.title for h in hits]}


def same(actual: dict[str, Any], reference: dict[str, list[Any]]) -> None:
    assert actual["ids"] == reference["ids"]
    assert actual["titles"] == reference["titles"]
    assert actual["scores"] == pytest.approx(reference["scores"], abs=1e-6)


@pytest.mark.parametrize("null", [None, float("nan")])
def test_a_query_that_is_null_is_refused(null: float | None, saved: Path) -> None:
    with pytest.raises(MlflowException, match="query is null in row 1"):
        mlflow.pyfunc.load_model(str(saved)).predict(pd.DataFrame({"query": ["sum", null]}))


def test_predict_answers_queries_with_their_own_k_or_the_parameters(saved: Path, released: Path) -> None:
    model = mlflow.pyfunc.load_model(str(saved))
    rows = model.predict(pd.DataFrame({"query": QUERIES, "k": [3, 1]})).to_dict("records")
    for row, query, k in zip(rows, QUERIES, (3, 1), strict=True):
        same(row, expected(released, query, k))
    rows = model.predict(pd.DataFrame({"query": QUERIES}), params={"k": 2, "dataset": "two"}).to_dict("records")
    for row, query in zip(rows, QUERIES, strict=True):
        same(row, expected(released, query, 2, "two"))
    assert len(model.predict(pd.DataFrame({"query": QUERIES}))["ids"][0]) == 10
    assert len(model.predict(model.input_example)["ids"][0]) == 5
    for columns, params, message in (
        ({"query": ["sum"], "k": [0]}, {}, "k is 0"),
        ({"query": ["sum"]}, {"dataset": "three"}, "three"),
        ({"text": ["sum"]}, {}, "query"),
    ):
        with pytest.raises(mlflow.MlflowException, match=message):
            model.predict(pd.DataFrame(columns), params=params)


@pytest.mark.slow
def test_the_model_loads_without_project_torch_or_pickle(saved: Path, released: Path, tmp_path: Path) -> None:
    assert not [path for path in saved.rglob("*") if path.suffix in {".pkl", ".pickle", ".joblib"}]
    same(predicted(saved, tmp_path), expected(released, QUERIES[0], 10))


@pytest.mark.slow
def test_a_model_that_fuses_brings_its_bm25_index_and_package(hybrid: Path, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    save_model(hybrid / "models/release/static", target)
    requirements = [set((model / "requirements.txt").read_text().split()) for model in (target, saved)]
    assert requirements[0] - requirements[1] == {f"bm25s=={version('bm25s')}"} and not requirements[1] - requirements[0]
    same(predicted(target, tmp_path), expected(hybrid, QUERIES[0], 10))


def test_a_stage_logs_a_model_that_loads_from_the_tracking_server(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "test")
    monkeypatch.chdir(tmp_path)
    with stage_run("release@static", {}) as run:
        log_release(run, released / "models/release/static", "release-static")
    api = registry.client()
    (logged,) = api.search_logged_models([tracking.experiment_id(api)])
    assert logged.name == "release-static"
    mlflow.set_tracking_uri(uri)
    try:
        model = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
    finally:
        mlflow.set_tracking_uri(None)
    same(model.predict(pd.DataFrame({"query": QUERIES[:1]})).to_dict("records")[0], expected(released, QUERIES[0], 10))


@pytest.mark.slow
def test_an_equal_release_is_stored_once(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "test")
    monkeypatch.chdir(tmp_path)
    releases = {name: released / "models/release" / name for name in ("static", "2l")}
    attached = []
    for name, folder in [("a", "static"), ("a", "static"), ("b", "static"), ("a", "2l"), ("a", "static")]:
        with stage_run("release", {}) as run:
            log_release(run, releases[folder], name, once=True)
        logged = registry.client().get_run(run.run_id)
        (output,) = logged.outputs.model_outputs
        assert logged.data.tags["slimtower.model"] == output.model_id
        attached.append(output.model_id)
        if len(attached) == 4:  # a copy that is gone is no copy
            shutil.rmtree(tmp_path / "mlartifacts/models" / attached[0])
    first, again, renamed, other_student, new = attached
    assert first == again
    assert len({first, renamed, other_student, new}) == 4


def answer(url: str, request: dict[str, Any], patience: float = 0) -> dict[str, Any]:
    """POST a JSON request; to a server that may still be starting, for `patience` seconds."""
    sent = urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(sent, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


@pytest.mark.slow
def test_mlflow_serves_it_over_http_to_many_at_once(saved: Path, released: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local", "-m", str(saved)]
    environment = os.environ | ALONE | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    url = f"http://127.0.0.1:{port}/invocations"
    requests = [(query, k, dataset) for query in QUERIES for k in (1, 3, 10) for dataset in ("one", "two")]

    def ask(row: tuple[str, int, str]) -> None:
        request = {"dataframe_records": [{"query": row[0]}], "params": {"k": row[1], "dataset": row[2]}}
        (prediction,) = answer(url, request)["predictions"]
        same(prediction, predictions[row])

    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "-p", str(port)], cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        predictions = {row: expected(released, *row) for row in requests}
        answer(url, {"dataframe_records": [{"query": QUERIES[0]}]}, patience=60)
        with ThreadPoolExecutor(6) as clients:
            assert list(clients.map(ask, requests * 3)) == [None] * 36
        with pytest.raises(urllib.error.HTTPError) as caught:
            answer(url, {"dataframe_records": [{"query": "sum"}], "params": {"k": 0}})
        assert caught.value.code == 400 and "k is 0" in caught.value.read().decode()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
