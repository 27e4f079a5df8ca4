"""python -m bench.neighbour [--run FOLDER]: training and embedding beside another busy process.

A student of two layers trains for some steps, and the teacher reads some texts, in turn alone and beside a process that
computes all the time; from a run in which `embed` is done (FOLDER; default: the present one). Each time is of a process
of its own, which waits passively for its threads, as a stage does. Writes bench/results/neighbour.json; exits 3 if
either takes more than 2.2 times as long as alone. Ten minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.machine import recording, write_record
from bench.tables.cells import Cell, distill_params, measure
from bench.tables.pipeline import Pipeline, open_pipeline
from pipeline.surroundings import settle
from slimtower.common.errors import UserError
from steps.encoders.towers import encode

RESULT = Path("bench/results/neighbour.json")
ROUNDS = 2
MOST = 2.2  # times as long as alone
STUDENT = {
    "start": {"layers": [0, -1]},
    "losses": [{"kind": "embedding", "distance": "l2"}],
    "epochs": 0.1,
    "batch_size": 128,
    "learning_rate": 4.0e-4,
}
TEXTS = 500  # that the teacher reads


def train(pipeline: Pipeline) -> float:
    """Seconds of a short training."""
    run = pipeline.params
    repeats = {part: times for part, times in run.repeats.items() if times > 0}
    figures = measure(Cell(distill_params(run, STUDENT, repeats, run.validation_texts, seed=1)), pipeline)
    return float(figures["training_seconds"])


def embed(pipeline: Pipeline) -> float:
    """Seconds in which the teacher reads texts, after some that nobody counts."""
    texts, teacher, precision = pipeline.document_texts()[:TEXTS], pipeline.teacher, pipeline.params.precision
    encode(teacher, texts[:100], "document", precision=precision)
    started = time.perf_counter()
    encode(teacher, texts, "document", precision=precision)
    return time.perf_counter() - started


WORK: dict[str, Callable[[Pipeline], float]] = {"training": train, "embedding": embed}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds(work: str, run: Path, neighbours: int) -> float:
    """Seconds of a piece of work in a process of its own."""
    command = [sys.executable, "-m", "bench.neighbour", "--run", str(run), "--work", work]
    with busy(neighbours):
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"bench.neighbour: {work}: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def compared(work: str, run: Path) -> dict[str, Any]:
    """Medians alone and beside a neighbour, and how many times as long the second is."""
    rounds: list[list[float]] = []
    for number in range(ROUNDS):
        rounds.append([seconds(work, run, neighbours) for neighbours in (0, 1)])
        print(f"bench.neighbour: {work}, round {number + 1}: {rounds[-1]} s alone and beside", flush=True)
    alone, beside = (median(column) for column in zip(*rounds, strict=True))
    return {"alone_seconds": alone, "beside_seconds": beside, "times": beside / alone, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.neighbour", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path(), help="a pipeline's folder in which embed is done")
    parser.add_argument("--work", choices=list(WORK), help=argparse.SUPPRESS)  # in a process of its own
    words = parser.parse_args()
    if words.work:
        print(json.dumps(WORK[words.work](open_pipeline(words.run))))
        return
    settle()  # for the processes that are started
    found = {work: compared(work, words.run) for work in WORK}
    write_record(RESULT, {"threads": torch.get_num_threads(), **found})
    if slow := [work for work, figures in found.items() if figures["times"] > MOST]:
        raise UserError(f"bench.neighbour: {', '.join(slow)} takes more than {MOST} times as long beside a neighbour")


if __name__ == "__main__":
    recording(main)
