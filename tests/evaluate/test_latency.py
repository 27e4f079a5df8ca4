"""Timing of encoders: what neighbours take from the processor does not count, what an endpoint's server takes does."""

import time

import numpy as np
import pytest

from steps.endpoint.module import WaitTime
from steps.evaluate import latency
from steps.evaluate.latency import Stopwatch, measure


def busy(seconds: float) -> None:
    """Compute for so many seconds of the processor's time."""
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        pass


def test_seconds_without_the_processor_do_not_count_unless_an_endpoint_was_asked() -> None:
    waited = WaitTime()
    watch = Stopwatch(waited)
    time.sleep(0.05)
    busy(0.01)
    assert 0.01 <= watch.lap() < 0.03
    waited.requests, waited.seconds = 1, 0.02
    time.sleep(0.05)
    assert watch.lap() >= 0.03, "what the endpoint's limits held back alone is taken off"


def test_on_a_gpu_the_seconds_on_the_wall_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "device", lambda: "cuda")
    watch = Stopwatch(WaitTime())
    time.sleep(0.03)
    assert watch.lap() >= 0.03


def test_a_student_is_as_many_times_as_fast_on_a_machine_that_is_taken_away_now_and_then() -> None:
    def encoder(seconds: float, pause: float) -> latency.Encode:
        def encode(texts: list[str]) -> np.ndarray:
            time.sleep(pause)
            busy(seconds)
            return np.zeros((len(texts), 2), dtype=np.float32)

        return encode

    timed = measure({"teacher": encoder(0.004, 0.004), "student": encoder(0.001, 0.0)}, ["a"] * 20, ["a"] * 8, 4)
    assert 3 < timed["teacher"].p50_ms / timed["student"].p50_ms < 5
    assert 3 < timed["student"].qps / timed["teacher"].qps < 5
