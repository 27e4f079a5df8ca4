"""python -m bench.moves [--seconds 60] [--clients 50] [--moves 10]: the service while its champion moves.

After `make demo`. Clients search over the loopback, each ten times a second at most, while the champion of a registry
made for this moves between two of the demo's students. Written to bench/results/moves.json:
requests, those that failed or whose hits are not what the release they name finds, latency as clients see it, memory.
Fails where a request did, and where memory grew by more than 10 % and 50 MB from the second move to the last.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import recording, write_record
from slimtower.common.errors import UserError
from slimtower.registry.client import client
from slimtower.serving.release import load_release
from steps.tracking.release_model import log_release
from steps.tracking.stage_run import stage_run

RELEASES, RESULT = Path("models/release"), Path("bench/results/moves.json")
NAME, PORT, WORKERS, K = "bench", 8793, 2, 10
GROWTH, GROWTH_MB = 0.10, 50.0  # of memory while releases move: what exceeds both is a leak
PAUSE_S = 0.1  # between an answer and the next request of a client
QUERIES = [
    "cumulative sum of an array", "remove duplicate rows", "shortest path between two nodes", "solve a linear system",
    "draw a histogram", "parse a date", "join two tables", "simplify an expression",
]  # fmt: skip
Hits = list[tuple[str, float]]


class Client(threading.Thread):
    """One client on one connection; `expected`: by a release's manifest and by query, the first K hits."""

    def __init__(self, number: int, expected: dict[str, dict[str, Hits]], stop: threading.Event, port: int) -> None:
        super().__init__()
        self.at, self.expected, self.stop, self.port = number, expected, stop, port
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.by_release: dict[str, int] = {}

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self.stop.is_set():
            began = time.perf_counter()
            try:
                self._ask(connection)
            except Exception as error:  # whatever it is counts as a failed request
                self.wrong.append(repr(error)[:200])
                connection.close()
            self.seconds.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        self.at += 1
        query = QUERIES[self.at % len(QUERIES)]
        connection.request(
            "POST", "/search", json.dumps({"query": query, "k": K}), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"{response.status}: {answer}")
        manifest = answer["release"]["manifest"]
        self.by_release[manifest] = self.by_release.get(manifest, 0) + 1
        hits = [(hit["id"], hit["score"]) for hit in answer["results"][0]["hits"]]
        expected = self.expected[manifest][query]
        if [doc for doc, _ in hits] != [doc for doc, _ in expected] or not np.allclose(
            [score for _, score in hits], [score for _, score in expected], atol=1e-4
        ):
            raise ValueError(f"{query}: not what {manifest[:12]} finds")


def expected_hits(folders: Iterable[Path]) -> dict[str, dict[str, Hits]]:
    """By manifest and query, the first K hits of each release."""
    by_manifest = {}
    for folder in folders:
        release = load_release(folder)
        hits = {query: [(hit.id, hit.score) for hit in release.query(query, K)] for query in QUERIES}
        by_manifest[release.manifest.checksum] = hits
    return by_manifest


def registered(folders: list[Path]) -> list[str]:
    """Register releases as versions of a model; returns their numbers."""
    api, versions = client(), []
    api.create_registered_model(NAME)
    for folder in folders:
        with stage_run("promote", {}) as run:
            log_release(run, folder, folder.name)
        model = api.get_run(run.run_id).data.tags["slimtower.model"]
        location = api.get_logged_model(model).artifact_location
        version = api.create_model_version(NAME, location, run_id=run.run_id, model_id=model)
        versions.append(str(version.version))
    return versions


def memory_mb(parent: int) -> float:
    """Memory of a process and its children, what they share counted once."""
    children = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True).stdout.split()
    total = 0
    for process in [str(parent), *children]:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 1)


def wait_for(version: str, service: subprocess.Popen[bytes]) -> None:
    """Until each process answers with this version: one may answer several times in a row."""
    streak, deadline = 0, time.monotonic() + 120
    while streak < 5 * WORKERS:
        if time.monotonic() > deadline or service.poll() is not None:
            log = Path("serve.log").read_text(encoding="utf-8")[-300:]
            raise UserError(f"bench.moves: version {version} did not answer within two minutes: {log}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
            connection.request("GET", "/health")
            releases = json.loads(connection.getresponse().read())["releases"]
            streak = streak + 1 if [row["version"] for row in releases] == [version] else 0
            connection.close()
        except OSError:
            streak = 0
        time.sleep(0.05)


def measure(folders: list[Path], seconds: float, clients: int, moves: int) -> dict[str, Any]:
    """Serve, move, ask. In the present folder, whose registry is made."""
    versions, api, expected = registered(folders), client(), expected_hits(folders)
    api.set_registered_model_alias(NAME, "champion", versions[0])
    command = [sys.executable, "-m", "slimtower", "serve", "--model", f"{NAME}@champion", "--port", str(PORT)]
    command += ["--workers", str(WORKERS), "--rate", "0", "--poll", "1"]
    with Path("serve.log").open("w") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(versions[0], service)
        stop, memory = threading.Event(), [memory_mb(service.pid)]
        asking = [Client(number, expected, stop, PORT) for number in range(clients)]
        for searcher in asking:
            searcher.start()
        for number in range(1, moves + 1):
            began = time.monotonic()
            api.set_registered_model_alias(NAME, "champion", versions[number % len(versions)])
            wait_for(versions[number % len(versions)], service)
            memory.append(memory_mb(service.pid))
            time.sleep(max(0.0, seconds / moves - (time.monotonic() - began)))
        stop.set()
        for searcher in asking:
            searcher.join()
    finally:
        service.terminate()
        service.wait(60)
    times = np.array([second for searcher in asking for second in searcher.seconds]) * 1000
    wrong = [error for searcher in asking for error in searcher.wrong]
    return {
        "requests": len(times),
        "wrong": len(wrong),
        "first_wrong": wrong[:3],
        "releases_seen": len({name for searcher in asking for name in searcher.by_release}),
        "ms": {f"p{q}": round(float(np.percentile(times, q)), 2) for q in (50, 95, 99)},
        "memory_mb_after_each_move": memory,
    }


def fault(wrong: int, memory: list[float]) -> str:
    """What is wrong, "" where nothing is. `memory`: MB before the first move and after each."""
    if wrong:
        return f"{wrong} requests failed or were answered by a mix"
    last = len(memory) - 1
    first = 2 + last % 2  # with the same release as the last
    if last > first and (grown := memory[last] - memory[first]) > max(GROWTH_MB, GROWTH * memory[first]):
        return (
            f"memory grew by {grown:.0f} MB, from {memory[first]:.0f} MB after move {first} to the end of {last} moves"
        )
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.moves", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=50, help="that search at once")
    parser.add_argument("--moves", type=int, default=10, help="of the champion")
    words = parser.parse_args()
    folders = sorted(path.parent.resolve() for path in RELEASES.glob("*/manifest.json"))[:2]
    if len(folders) < 2:
        raise UserError(f"{RELEASES}: needs two students; run `make demo`")
    target, here = RESULT.resolve(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="bench-moves.") as scratch:
        os.chdir(scratch)
        os.environ |= {
            "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/mlflow.db",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        os.environ |= {"SLIMTOWER_CACHE": f"{scratch}/cache", "SLIMTOWER_PIPELINE": "bench"}
        result = measure(folders, words.seconds, words.clients, words.moves)
        os.chdir(here)
    setting = vars(words) | {"workers": WORKERS}
    write_record(target, setting | result)
    print(json.dumps(result, indent=1))
    if message := fault(result["wrong"], result["memory_mb_after_each_move"]):
        raise UserError(f"bench.moves: {message}")


if __name__ == "__main__":
    recording(main)
