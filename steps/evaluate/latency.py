"""Speed of query encoders, text to embedding: one query at a time, and queries/s in batches; one thread."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from steps.core.progress import progress
from steps.encoders.precision import device
from steps.endpoint.module import WaitTime, asking_anew

Encode = Callable[[list[str]], np.ndarray]
THROUGHPUT_BATCH = 32  # queries a batch where throughput is measured
_BLOCK = 25  # queries of a turn
_WARM_UP = 5  # untimed queries before each turn
_PASSES = 3
_RESOLUTION = 1e-5  # seconds; a clock of the processor that ticks less often tells nothing of a query


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one query (median and 99th percentile) and throughput in queries per second."""

    p50_ms: float
    p99_ms: float
    qps: float


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread and the tokenizer no pool, and restore both."""
    threads, pool = torch.get_num_threads(), os.environ.get("TOKENIZERS_PARALLELISM")
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if pool is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = pool


class Stopwatch:
    """Seconds between two laps of this process' own work: neighbours who keep the processor busy do not count.

    On a GPU and of an endpoint's answer the seconds on the wall count, but not what an endpoint's limits hold back.
    """

    def __init__(self, waited: WaitTime, *, wall: bool = False) -> None:
        """`waited` is what `asking_anew` gives; `wall`: what is timed waits for another process, as a vector engine."""
        fine = time.get_clock_info("process_time").resolution <= _RESOLUTION
        self._waited, self._computes_here = waited, fine and not wall and device() == "cpu"
        self._seen = self._look()

    def lap(self) -> float:
        """Seconds since the last lap, above 0."""
        before, self._seen = self._seen, self._look()
        wall, processor, held_back, requests = (
            later - earlier for later, earlier in zip(self._seen, before, strict=True)
        )
        alone = self._computes_here and not requests
        return max(min(wall, processor or wall) if alone else wall - held_back, 1e-9)

    def _look(self) -> tuple[float, float, float, int]:
        return time.perf_counter(), time.process_time(), self._waited.seconds, self._waited.requests


def measure(
    encoders: Mapping[str, Encode],
    single: Sequence[str],
    batched: Sequence[str],
    batch_size: int,
    *,
    wall: bool = False,
) -> dict[str, Latency]:
    """Time `single` texts one by one and `batched` texts in batches; throughput is the median of three passes.

    The encoders take turns, so that a change of the processor's clock hits all alike. `wall` as `Stopwatch` has it.
    """
    times: dict[str, list[float]] = {name: [] for name in encoders}
    passes: dict[str, list[float]] = {name: [] for name in encoders}
    batches = [list(batched[start : start + batch_size]) for start in range(0, len(batched), batch_size)]
    starts = range(0, len(single), _BLOCK)
    with one_thread(), asking_anew() as waited:
        watch = Stopwatch(waited, wall=wall)
        for start in progress(starts, len(starts), "latency"):
            block = single[start : start + _BLOCK]
            for name, encode in encoders.items():
                for text in block[:_WARM_UP]:  # the encoder before it has emptied the processor's caches
                    encode([text])
                times[name] += [_seconds(encode, [text], watch) for text in block]
        for _ in progress(range(_PASSES), _PASSES, "throughput"):
            for name, encode in encoders.items():
                passes[name].append(sum(_seconds(encode, batch, watch) for batch in batches))
    latencies = {}
    for name in encoders:
        p50, p99 = np.quantile(np.array(times[name]), [0.5, 0.99]) * 1000
        latencies[name] = Latency(float(p50), float(p99), len(batched) / float(np.median(passes[name])))
    return latencies


def _seconds(encode: Encode, texts: list[str], watch: Stopwatch) -> float:
    watch.lap()
    encode(texts)
    return watch.lap()


def sample(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` texts drawn with a seed: all different while there are enough, then repeated."""
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[order[position % len(order)]] for position in range(count)]


def processor() -> str:
    """Name of the processor that the timings were taken on."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
