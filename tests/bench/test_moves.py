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
