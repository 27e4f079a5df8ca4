"""python -m bench.endpoint [--port 7997]: the embedded demo with its teacher behind a published server, beside it here.

The bundled MiniLM, untrained, is the teacher twice: in this process, and as `kind: endpoint` of infinity-emb, a server
that others publish, in an environment of its own (requirements/endpoint_server.lock, made below .cache/endpoint).
Between the two stands a proxy that counts requests and texts. Both runs distil `static` and go as far as `evaluate`.
Writes bench/results/endpoint.json: what `static` keeps in each, and whether any text was paid for twice, in whichever
role. Besides the probes, which every process asks for, and the timed queries of `evaluate`, none should be. Started
again, it pays for everything again: what an earlier run was answered would be missing from the counts. Exits 3 where
the two differ by more than half a point, or a text was paid for twice.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from bench.machine import recording, write_record
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from steps.encoders.bases import resolve_base
from steps.endpoint.module import PROBES

FOLDER, LOCK = Path(".cache/endpoint"), Path("requirements/endpoint_server.lock")
RESULT = Path("bench/results/endpoint.json")
BASE, STUDENT, TOKENS = "all-MiniLM-L6-v2", "static", 256
POINTS = 0.5  # by which the two may differ
_STARTS_S = 600


class Counting(ThreadingHTTPServer):
    """A proxy in front of a server of embeddings: how often each text was asked for, and requests."""

    daemon_threads = True

    def __init__(self, port: int, upstream: str) -> None:
        super().__init__(("127.0.0.1", port), _Passing)
        self.upstream, self.lock = upstream, threading.Lock()
        self.requests, self.refused, self.asked = 0, 0, Counter[str]()

    def count(self, body: Mapping[str, Any], status: int) -> None:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        with self.lock:
            self.requests += 1
            self.refused += status != 200
            self.asked.update(texts if status == 200 else ())

    def figures(self) -> dict[str, int]:
        """Requests, texts, and those of them that had been asked for before; without the probes."""
        with self.lock:
            paid = {text: count for text, count in self.asked.items() if text not in PROBES}
            texts = sum(paid.values())
            return {"requests": self.requests, "refused": self.refused, "texts": texts, "again": texts - len(paid)}


class _Passing(BaseHTTPRequestHandler):
    """Passes a request on, and counts it."""

    server: Counting

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asking = urllib.request.Request(self.server.upstream + self.path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asking) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        self.server.count(json.loads(body), status)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def counting(port: int, upstream: str) -> Iterator[Counting]:
    proxy = Counting(port, upstream)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()


def server_python() -> Path:
    """Python of the server's environment, made where it is not there, or of another lock."""
    folder, stamp = FOLDER / "venv", FOLDER / "venv/lock"
    python, digest = folder / "bin/python", sha256_file(LOCK)
    if not stamp.is_file() or stamp.read_text() != digest:
        if sys.version_info >= (3, 13):
            raise UserError("endpoint: the server's numpy needs Python 3.11 or 3.12; make .venv of one")
        print(f"endpoint: installing {LOCK} into {folder}", flush=True)
        torch = f"torch==={version('torch')}"  # the build that is here, with CUDA or without
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if "+cpu" in torch else []
        subprocess.run([*pip, *index, torch], check=True)
        subprocess.run([*pip, "-r", str(LOCK)], check=True)
        stamp.write_text(digest)
    return python


@contextmanager
def serving(python: Path, port: int) -> Iterator[str]:
    """The published server over the bundled model; yields its address. UserError where it ends or does not start."""
    command = [
        str(python.with_name("infinity_emb")),
        "v2",
        "--model-id",
        resolve_base(BASE),
        "--served-model-name",
        BASE,
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--url-prefix", "/v1", "--engine", "torch", "--device"]
    command += ["cpu", "--dtype", "float32", "--no-bettertransformer", "--no-model-warmup"]
    environment = os.environ | {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}
    log = FOLDER / "server.log"
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + _STARTS_S
        while not _answers(address := f"http://127.0.0.1:{port}"):
            if running.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"the server does not answer on port {port}; {log} says why")
            time.sleep(1)
        yield address
    finally:
        running.terminate()
        running.wait(30)


def _answers(address: str) -> bool:
    body = json.dumps({"model": BASE, "input": ["a"]}).encode()
    asking = urllib.request.Request(f"{address}/v1/embeddings", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asking, timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def recipe(teacher: Mapping[str, Any]) -> dict[str, Any]:
    """What is laid over params.yaml: one teacher that is not trained, one student."""
    return {
        "candidates": {"searchers": []},
        "teach": {"teachers": ["model"], "index": "model", "teacher": {"model": dict(teacher)}},
        "embed": {"precision": "fp32"},  # as the server computes
        "distill": {"students": [STUDENT]},
        "evaluate": {"latency_queries": 10},
    }


def teachers(port: int, started: str) -> dict[str, dict[str, Any]]:
    """The model here, and the same behind the proxy; `started`, in each request, rules out earlier starts' answers."""
    reads = {role: {"max_length": TOKENS, "body": {"user": started}} for role in ("query", "document")}
    connection = {"base_url": f"http://127.0.0.1:{port}/v1", "key_variable": "", "max_tokens_total": 0}
    connection |= {"batch_texts": 32, "concurrency": 2, "timeout_s": 600.0}
    return {
        "here": {"kind": "dual_encoder", "base": BASE, "epochs": 0.0, "max_document_length": TOKENS},
        "served": {"kind": "endpoint", "model": BASE, "tokenizer": BASE, "connection": connection, **reads},
    }


def run(name: str, teacher: Mapping[str, Any], *stages: str) -> Path:
    """The run of a teacher, brought up to these stages; returns its folder. UserError where it fails."""
    path = FOLDER / f"endpoint_{name}.yaml"  # its name is the run's
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(recipe(teacher)), encoding="utf-8")
    ended = subprocess.run([sys.executable, "-m", "pipeline.recipe", str(path), *stages])
    if ended.returncode:
        raise UserError(f"{path}: its run ended with exit code {ended.returncode}; the reason stands above")
    return Path("runs") / path.stem


def read_retention(folder: Path) -> dict[str, Any]:
    """Of a run: test nDCG@10 of teacher and student, and what the student keeps, in percent, with its interval."""
    metrics = read_json(folder / "reports/metrics.json")
    [scores] = metrics["datasets"].values()
    retention = metrics["retention"][STUDENT]
    percent = {name: 100 * retention[key] for name, key in
               (("retention", "ratio_of_means"), ("ci95_low", "ci95_low"), ("ci95_high", "ci95_high"))}  # fmt: skip
    return {"teacher_ndcg": scores["teacher"]["nDCG@10"], "student_ndcg": scores[STUDENT]["nDCG@10"], **percent}


def compared(here: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, Any]:
    """Points of retention between the two, and whether they are no more than POINTS."""
    points = served["retention"] - here["retention"]
    return {"here": here, "served": served, "points": points, "within": abs(points) <= POINTS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.endpoint", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--port", type=int, default=7997, help="of the proxy; the server takes the next one")
    port = parser.parse_args().port
    described = teachers(port, uuid4().hex)
    here = read_retention(run("here", described["here"], "evaluate"))
    with serving(server_python(), port + 1) as address, counting(port, address) as proxy:
        run("served", described["served"], "release")
        figures = proxy.figures()
        served = read_retention(run("served", described["served"], "evaluate"))
        counts = {"until_release": figures, "with_evaluate": proxy.figures()}
    comparison = compared(here, served)
    pins = dict(line.split("==") for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line)
    server = f"infinity-emb {pins['infinity-emb']}, sentence-transformers {pins['sentence-transformers']}"
    print(
        f"retention of {STUDENT}: {here['retention']:.2f} % of the teacher here, {served['retention']:.2f} % of the"
        f" same behind {server} ({comparison['points']:+.2f} points); {figures['requests']} requests,"
        f" {figures['texts']} texts, {figures['again']} of them a second time"
    )
    write_record(RESULT, {"server": server, "asked": counts, **comparison})
    if figures["again"] or not comparison["within"]:
        raise UserError(f"bench.endpoint: the two differ by more than {POINTS} points, or a text was paid for twice")


if __name__ == "__main__":
    recording(main)
