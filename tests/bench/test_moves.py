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
    found = moves.measure(releases, SECONDS, CLIENTS, MOVES)
    assert (found["wrong"], found["releases_seen"]) == (0, 2), found["first_wrong"]
    assert found["requests"] > 10
    before, first, *later = found["memory_mb_after_each_move"]
    assert len(later) == MOVES - 1 and later[-1] < 1.25 * max(before, first, later[0])  # each release was read by then
    for name, value in {"clients": CLIENTS, "requests": found["requests"], "p99_ms": found["ms"]["p99"]}.items():
        record_property(name, value)
    record_property("memory_mb", {"first": before, "last": later[-1]})
