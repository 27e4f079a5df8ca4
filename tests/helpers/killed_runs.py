"""Whole runs of the pipeline on small data, which a test kills at chosen moments and starts again."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from dvc.repo import Repo
from whole_run import params_of, write_click_log

from pipeline.params import Params
from pipeline.plain_copy import plain_copy

_STARTED = re.compile(r"Running stage '([^']+)'")
# measured times, and what is made of them: no two runs agree in these
_TIMED = {"report.html", "report.md", "frontier.csv"}
_VOLATILE = re.compile(r"second|_ms$|per_second|^latency|^machine$|budget|^throughput|^choice$")


def small_params(root: Path, tower: Path, *, ranked: bool = True) -> Params:
    """A click log, a ranker unless told otherwise, a second teacher, which scores, and two students.

    Every stage has something to do, and every training makes more than one step.
    """
    data = write_click_log(root / "log")
    knobs = {"epochs": 1.0, "max_triplets": 24, "batch_size": 8, "max_length": 32, "checkpoint_steps": 1}
    changes = {
        "candidates": {"queries": "all", "max_queries": 40},
        "rank": {
            "rankers": ["cross"] if ranked else [],
            "ranker": {"cross": {"base": str(tower), "precision": "fp32", "max_queries": 10, **knobs}},
        },
        "teach": {
            "teachers": ["dense", "other"],
            "teacher": {
                "dense": {"max_triplets": 64, "checkpoint_steps": 1},
                "other": {
                    "kind": "cross_encoder", "base": str(tower), "pooling": "cls", "scale": 1.0,
                    "reconstruction_weight": 0.0, "loss": "bce", "negatives": 2, "learning_rate": 1e-3,
                    "dev_queries": 5, "dev_documents": 10, "precision": "fp32", "seed": 3, **knobs,
                },
            },
        },
        "score": {"teachers": ["other"], "depth": 3, "max_texts": 60, "shard_texts": 16, "precision": "fp32"},
    }  # fmt: skip
    return params_of("click_log.yaml", tower, changes, DATA=str(data), TEST_FROM="2026-01-20", EPOCHS="1.0")


@dataclass
class Runs:
    """A project of its own, below `root`, with a cache that it may share; `targets` are the stages that it runs."""

    root: Path
    cache: Path
    targets: tuple[str, ...] = ()

    @classmethod
    def make(cls, root: Path, params: Params, cache: Path | None = None, targets: tuple[str, ...] = ()) -> "Runs":
        """A copy of the project with these params."""
        plain_copy(Path.cwd(), root)
        (root / "dvc.lock").unlink(missing_ok=True)
        (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump(exclude_unset=True)), encoding="utf-8")
        runs = cls(root, cache or root / "cache", targets)
        (root / ".dvc/config.local").write_text(f"[cache]\n    dir = {runs.cache / 'dvc'}\n[core]\n    no_scm = true\n")
        return runs

    def start(self) -> "Running":
        """Start a run."""
        dropped = ("SLIMTOWER_", "MLFLOW_", "DVC_")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        environment = variables | {"SLIMTOWER_CACHE": str(self.cache), "SLIMTOWER_GIT_COMMIT": "test", "PYTHONPATH": ""}
        command = [sys.executable, "-m", "pipeline", *self.targets]
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return Running(process)


def outputs(root: Path) -> dict[str, str]:
    """Digest by path of every output that is there, a folder's of its files; without what is measured in time."""
    with contextlib.chdir(root), Repo() as repo:  # DVC names outputs relative to where it runs
        paths = sorted(str(out.def_path) for stage in repo.index.stages for out in stage.outs)
    return {path: _digest(root / path) for path in paths if (root / path).exists()}


class Running:
    """A run that goes on: what it has said, and when its stages started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.said, self.stages = process, list[str](), list[tuple[str, float]]()
        self._begun, self._news, self._silent = time.monotonic(), threading.Condition(), False
        self.reader = threading.Thread(target=self._read_output, daemon=True)
        self.reader.start()

    def _read_output(self) -> None:
        for text in self.process.stdout or ():
            with self._news:
                self.said.append(text)
                if match := _STARTED.match(text):
                    self.stages.append((match[1], time.monotonic() - self._begun))
                self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def ended_well(self) -> "Running":
        """Wait for its end, which must be a good one."""
        code = self.process.wait()
        self.reader.join(10)
        assert code == 0, "".join(self.said[-60:])
        return self

    def durations(self) -> dict[str, float]:
        """Seconds from the start of each stage to that of the next, or to the end."""
        ends = [at for _, at in self.stages[1:]] + [time.monotonic() - self._begun]
        return {stage: stop - at for (stage, at), stop in zip(self.stages, ends, strict=True)}

    def kill_in(self, stages: list[str], delay: float, *, stage_only: bool) -> str | None:
        """Kill it `delay` seconds after the first of the stages started; returns where it was, None where it ended.

        With `stage_only` the stage's own process alone, as the kernel does that runs out of memory.
        """
        with self._news:
            self._news.wait_for(lambda: self._silent or any(name in stages for name, _ in self.stages), 600)
        time.sleep(delay)
        if self._silent or self.process.poll() is not None:
            self.process.wait()
            return None
        below = psutil.Process(self.process.pid).children(recursive=True)
        processes = [child for child in below if _is_stage(child)] if stage_only else []
        for pid in [child.pid for child in processes] or [self.process.pid]:
            with contextlib.suppress(psutil.NoSuchProcess):
                kill_family(pid)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:  # the stage had just ended, and the next goes on
            kill_family(self.process.pid)
            self.process.wait()
        self.reader.join(10)
        return self.stages[-1][0] if self.stages else ""


def kill_family(pid: int) -> None:
    """Kill a process and all below it, as the end of a container does."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family[1:], timeout=10)


def _is_stage(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.startswith("steps.") for word in process.cmdline())
    return False


def _digest(path: Path) -> str:
    """Of a file, or of all below a folder; JSON without what is measured in time."""
    within = (file for file in path.rglob("*") if file.is_file() and ".staging." not in str(file))
    files = [path] if path.is_file() else sorted(within)
    total = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        if file.name in _TIMED:
            content = b""
        elif file.suffix == ".json":
            content = json.dumps(_lasting(json.loads(content)), sort_keys=True).encode()
        total.update(f"{file.relative_to(path) if file != path else ''}\n".encode() + hashlib.sha256(content).digest())
    return total.hexdigest()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(inner) for name, inner in value.items() if not _VOLATILE.search(name)}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value
