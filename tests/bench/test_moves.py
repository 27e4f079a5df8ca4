"""The benchmark of moves, small: a registry, a service, clients that check what they get."""

import os
from pathlib import Path

import pytest

from bench import moves


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_get_what_the_named_release_finds_while_the_champion_moves(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "test")
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    found = moves.measure([released / "models/release" / name for name in ("2l", "static")], 2.0, 3, 2)
    assert (found["wrong"], found["releases_seen"]) == (0, 2)
    assert found["requests"] > 10 and len(found["memory_mb_after_each_move"]) == 3


@pytest.mark.parametrize(
    ("wrong", "memory", "said"),
    [
        (3, [400.0], "3 requests failed"),
        (0, [400.0, 600, 700, 600, 749], ""),  # neither 50 MB nor what comes with a second release in memory
        (0, [400.0, 600, 700, 600, 760], ""),  # 60 MB are no tenth of 700
        (0, [100.0, 110, 120, 110, 165], ""),  # a large share of little
        (0, [400.0, 600, 700, 600, 780], "memory grew by 80 MB, from 700 MB after move 2 to the end of 4 moves"),
        (0, [400.0, 400, 900, 400, 900, 500], "memory grew by 100 MB, from 400 MB after move 3"),  # the same release
        (0, [400.0, 900], ""),
        (0, [400.0, 900, 1800], ""),  # nothing to compare with
    ],
)
def test_wrong_answers_and_memory_that_grows_are_faults(wrong: int, memory: list[float], said: str) -> None:
    found = moves.fault(wrong, memory)
    assert found.startswith(said) and bool(found) is bool(said)
