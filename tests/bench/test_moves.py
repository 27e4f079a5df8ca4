"""The benchmark of moves: a registry, a service, clients that check what they get.

Small, but in `make test-faults`: fifty clients for a minute.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_record import FAULTS

from bench import moves

SECONDS, CLIENTS, MOVES = (60.0, 50, 10) if FAULTS else (2.0, 3, 2)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.faults("load")
def test_clients_get_what_the_named_release_finds_while_the_champion_moves(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "test")
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    releases = [released / "models/release" / name for name in ("2l", "static")]
    result = moves.measure(releases, SECONDS, CLIENTS, MOVES)
    assert (result["wrong"], result["releases_seen"]) == (0, 2), result["first_wrong"]
    assert result["requests"] > 10
    memory = result["memory_mb_after_each_move"]
    assert len(memory) == MOVES + 1 and not moves.fault(result["wrong"], memory)
    for name, value in {"clients": CLIENTS, "requests": result["requests"], "p99_ms": result["ms"]["p99"]}.items():
        record_property(name, value)
    record_property("memory_mb", {"first": memory[0], "last": memory[-1]})


@pytest.mark.parametrize(
    ("wrong", "memory", "start"),
    [
        (3, [400.0], "3 requests failed"),
        (0, [400.0, 600, 700, 600, 749], ""),  # neither 50 MB nor what comes with a second release in memory
        (0, [400.0, 600, 700, 600, 760], ""),  # 60 MB are no tenth of 700
        (0, [400.0, 600, 700, 600, 780], "memory grew by 80 MB, from 700 MB after move 2 to the end of 4 moves"),
        (0, [400.0, 400, 900, 400, 900, 500], "memory grew by 100 MB, from 400 MB after move 3"),  # the same release
        (0, [400.0, 900, 1800], ""),  # nothing to compare with
    ],
)
def test_wrong_answers_and_memory_that_grows_are_faults(wrong: int, memory: list[float], start: str) -> None:
    message = moves.fault(wrong, memory)
    assert message.startswith(start) and bool(message) is bool(start)
