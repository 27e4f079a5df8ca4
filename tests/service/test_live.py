"""Real processes: swaps under load, a promotion, a graceful stop, and no torch."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from serve_fakes import replace
from serve_process import ROOT, get, serving, until
from stages import INDEX, run_release

from bench import moves
from slimtower.serving.release import load_release
from steps.tracking.release_model import log_release

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.faults("load")]


@pytest.fixture(scope="module")
def two(released: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two releases of one name whose encoders and indexes are of 32 and of 16 dimensions: parts of both do not fit."""
    project = Path(shutil.copytree(released, tmp_path_factory.mktemp("two") / "project"))
    narrow = run_release(project, "static", index=INDEX.model_copy(update={"dim": 16}))
    return {"wide": released / "models/release/static", "narrow": narrow}


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "serve.log").read_text().splitlines() if line.endswith("}")]


def loaded(folder: Path) -> list[dict[str, Any]]:
    return [line for line in log_of(folder) if line["event"] == "loaded"]


def in_both_processes(folder: Path, earlier: int, manifest: str) -> bool:
    """Whether both have loaded it since there were `earlier` lines: a process that missed it must not be hurried on."""
    return len({line["pid"] for line in loaded(folder)[earlier:] if line["manifest"] == manifest}) == 2


def test_swaps_under_load_fail_no_request_and_mix_no_answer(
    two: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "PAUSE_S", 0.0)
    target = Path(shutil.copytree(two["wide"], tmp_path / "release/now"))
    expected, stop = moves.expected_hits(two.values()), threading.Event()
    with serving(tmp_path, "--release", str(target), "--workers", "2") as (url, process):
        clients = [moves.Client(number, expected, stop, int(url.rpartition(":")[2])) for number in range(6)]
        for client in clients:
            client.start()
        for name in ("narrow", "wide", "narrow"):
            earlier = len(loaded(tmp_path))
            replace(target, two[name])
            checksum = load_release(two[name]).manifest.checksum
            until(lambda: in_both_processes(tmp_path, earlier, checksum), process)  # noqa: B023
        swaps = re.compile(r"slimtower_swaps_total [56]\b")  # 5 where a process began with the second release
        until(lambda: swaps.search(_text(f"{url}/metrics")), process)
        stop.set()
        for client in clients:
            client.join(30)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert [wrong for client in clients for wrong in client.wrong] == []
    assert {manifest for client in clients for manifest in client.by_release} == set(expected)
    assert [line["event"] for line in log_of(tmp_path)].count("stopped") == 2
    errors = [line["error"] for line in log_of(tmp_path) if line["level"] == "error"]
    assert not [error for error in errors if "was replaced while" not in error and "no release here" not in error]


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def test_a_promotion_and_a_rollback_are_noticed(
    two: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "test")
    monkeypatch.chdir(tmp_path)
    from slimtower.registry import client as registry
    from steps.tracking.stage_run import stage_run

    api = registry.client()
    api.create_registered_model("retriever")
    for number, name in enumerate(("wide", "narrow"), start=1):
        with stage_run("promote", {}) as run:
            log_release(run, two[name], name)
        model = api.get_run(run.run_id).data.tags["slimtower.model"]
        location = api.get_logged_model(model).artifact_location
        tags = {"slimtower.git_commit": f"c0ffee{number}", "slimtower.data_md5": "da7a"}
        tags["slimtower.pipeline_run"] = "made-by"
        api.create_model_version("retriever", location, run_id=run.run_id, model_id=model, tags=tags)
    expected = {str(number): load_release(two[name]).manifest.checksum for number, name in ((1, "wide"), (2, "narrow"))}
    with serving(tmp_path, "--model", "retriever@champion", ready=False) as (url, process):
        assert _health(url)["failing"][0]["kind"] == "cannot tell what to serve"
        assert "make promote" in (tmp_path / "serve.log").read_text()
        for version in ("1", "2", "1"):
            event = {"at": f"2026-01-0{version}T00:00:00Z", "version": version, "by": "tester"}
            api.set_registered_model_tag("retriever", f"slimtower.event.00000{version}", json.dumps(event))
            api.set_registered_model_alias("retriever", "champion", version)
            until(lambda: [row["version"] for row in _health(url)["releases"]] == [version], process)  # noqa: B023
            answer = get(f"{url}/search?q=sum")
            assert answer["system"] == "champion"
            assert answer["release"] == {"student": "static", "manifest": expected[version], "version": version}
            (facts,) = get(f"{url}/systems")["systems"]
            assert (facts["commit"], facts["promoted"]) == (f"c0ffee{version}", event["at"])
            assert (facts["promoted_by"], facts["data"], facts["run"]) == ("tester", "da7a", "made-by")
        api.delete_registered_model_alias("retriever", "champion")
        until(lambda: _health(url)["failing"], process)
        assert get(f"{url}/search?q=sum")["release"]["version"] == "1"


def _health(url: str) -> Any:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/health")
    return json.loads(connection.getresponse().read())


def test_one_client_that_reads_no_answer_takes_nothing_from_the_others(released: Path, tmp_path: Path) -> None:
    options = ["--release", str(released / "models/release/static"), "--rate", "100000", "--max-requests", "8"]
    body = json.dumps({"query": ["sum"] * 256, "k": 10}).encode()
    head = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with serving(tmp_path, *options) as (url, process), contextlib.ExitStack() as opened:
        port = int(url.rpartition(":")[2])
        for _ in range(16):
            greedy = opened.enter_context(socket.socket())
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.connect(("127.0.0.1", port))
            greedy.sendall((head.encode() + body) * 8)
        until(lambda: 'slimtower_refused_total{status="429"}' in _text(f"{url}/metrics"), process)
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=("127.0.0.2", 0))
            connection.request("GET", "/search?q=sum")
            assert connection.getresponse().status == 200
            connection.close()


def test_without_a_release_or_a_port_the_command_says_what_to_do(released: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--release", str(released / "models/release"), "--no-baselines") as (url, process):
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()
        port = url.rpartition(":")[2]
        for options, message in (
            (["--port", port, "--release", str(released / "models/release")], "name another port"),
            (["--port", "0"], "models/release: no release here; run `make demo`"),
        ):
            command = [sys.executable, "-m", "slimtower", "serve", *options]
            done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
            assert done.returncode == 3, done.stderr
            assert message in done.stderr and len(done.stderr.splitlines()) == 1
