"""Timing with a fake encoder."""

import os
import time

import numpy as np
import pytest
import torch

from steps.evaluate.latency import measure, one_thread, sample


class Sleeper:
    """Takes a fixed time a call and notes who was called with how many texts."""

    def __init__(self, name: str, seconds: float, calls: list[tuple[str, int]]) -> None:
        self.name, self.seconds, self.calls = name, seconds, calls

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.calls.append((self.name, len(texts)))
        time.sleep(self.seconds)
        return np.zeros((len(texts), 4), dtype=np.float32)


def test_latency_and_throughput_of_known_encoders() -> None:
    calls: list[tuple[str, int]] = []
    encoders = {"slow": Sleeper("slow", 0.004, calls), "quick": Sleeper("quick", 0.001, calls)}
    result = measure(encoders, ["a"] * 12, ["b"] * 10, batch_size=4)
    assert 4 <= result["slow"].p50_ms <= result["slow"].p99_ms
    assert 1 <= result["quick"].p50_ms < result["slow"].p50_ms
    assert 0 < result["slow"].qps <= 10 / (3 * 0.004)
    # 5 untimed and 12 timed queries one by one, then three passes of 10 texts in batches of 4
    assert [size for name, size in calls if name == "slow"] == [1] * (5 + 12) + [4, 4, 2] * 3


def test_encoders_take_turns_in_blocks() -> None:
    calls: list[tuple[str, int]] = []
    measure({name: Sleeper(name, 0, calls) for name in "ab"}, ["q"] * 60, ["q"], batch_size=1)
    turns = [name for position, (name, _) in enumerate(calls) if position == 0 or calls[position - 1][0] != name]
    assert turns == ["a", "b"] * (3 + 3)  # 60 queries are three blocks; then three passes


def test_one_thread_is_restored_after_an_error(monkeypatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        raise RuntimeError
    assert torch.get_num_threads() == 2
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    torch.set_num_threads(before)


def test_sample_repeats_only_when_it_must() -> None:
    texts = [str(number) for number in range(10)]
    assert len(set(sample(texts, 10, seed=1))) == 10
    assert sample(texts, 4, seed=1) == sample(texts, 10, seed=1)[:4]
    assert sorted(sample(["a", "b"], 4, seed=1)) == ["a", "a", "b", "b"]
