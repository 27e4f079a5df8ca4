"""The same commit, params and data give the same outputs: twice in turn, and from two runs on one cache at once."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_record import FAULTS
from killed_runs import Runs, outputs, small_params
from whole_run import run_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FAULTS, reason="make test-faults runs it"),
]


@pytest.mark.faults("two runs at once")
def test_two_runs_on_one_cache_at_once_end_alike(tmp_path: Path, tiny_tower: Path) -> None:
    params = small_params(tmp_path, tiny_tower)
    pair = [Runs.make(tmp_path / name, params, tmp_path / "cache") for name in ("one", "other")]
    for running in [project.start() for project in pair]:
        running.ended_well()
    first, second = (outputs(project.root) for project in pair)
    assert first == second and len(first) > 9


@pytest.mark.faults("equal digests")
def test_the_same_data_give_the_same_digests_twice(
    tmp_path: Path, tiny_tower: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    """Every output of every stage, in processes and with caches of their own; without what is measured in time."""
    params = small_params(tmp_path, tiny_tower)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / name / "cache"))
        process = multiprocessing.get_context("spawn").Process(target=run_all, args=(tmp_path / name, params))
        process.start()
        process.join()
        assert process.exitcode == 0
    first, second = (outputs(tmp_path / name) for name in ("one", "other"))
    assert first == second and len(first) > 30
    record_property("outputs", len(first))
