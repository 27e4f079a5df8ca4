"""Killed at random moments and run again, the pipeline ends as one that was left alone, and so does a run of tasks.

`make test-slow` kills a few times; `make test-faults` sets FAULTS, and then whole runs are killed so often, each stage
at least five times.
"""

import contextlib
import multiprocessing
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fault_record import FAULTS
from killed_runs import Runs, kill_family, outputs, small_params
from task_project import STAGES, Project, make_project
from whole_run import run_all

from steps.promote.recorded import dvc_md5

pytestmark = [pytest.mark.slow, pytest.mark.faults("kills"), pytest.mark.timeout(4 * 3600)]

TARGETS = () if FAULTS else ("candidates",)
LEAST = 5 if FAULTS else 0  # of a stage
TASKS = FAULTS // 4 or 1  # of the kills
PHASES = ("pull", "repro", "push")  # of a task
SEED = 22
of_faults = pytest.mark.skipif(not FAULTS, reason="make test-faults runs it")


def test_a_killed_pipeline_ends_as_an_undisturbed_one(
    tmp_path: Path, tiny_tower: Path, record_property: Callable[..., None]
) -> None:
    draw = random.Random(SEED)
    params = small_params(tmp_path, tiny_tower, ranked=bool(FAULTS))
    calm = Runs.make(tmp_path / "calm", params, targets=TARGETS)
    durations = calm.start().ended_well().durations()
    expected, order = outputs(calm.root), list(durations)
    killed: Counter[str] = Counter()
    while min(killed[stage] for stage in order) < LEAST or killed.total() < max(FAULTS - TASKS, 1):
        project = Runs.make(tmp_path / "killed", params, targets=TARGETS)
        for number, stage in enumerate(order):
            delay = durations[stage] * draw.uniform(0, 1.05)  # DVC records the stage in the end, or the next has begun
            where = project.start().kill_in(order[number:], delay, stage_only=draw.random() < 0.25)
            if where is None:
                break
            killed[where] += 1
            record_property("kills", {where: 1})  # as it happens: a failure later loses none
            found = outputs(project.root)
            assert found == {path: expected[path] for path in found}, f"killed in {where}: part of an output is there"
        project.start().ended_well()
        assert outputs(project.root) == expected
        assert not list(project.root.glob("[dmr]*/**/.staging.*"))
        shutil.rmtree(project.root)
        record_property("runs", 1)


@of_faults
@pytest.mark.faults("two runs at once")
def test_two_runs_on_one_cache_at_once_end_alike(tmp_path: Path, tiny_tower: Path) -> None:
    params = small_params(tmp_path, tiny_tower, ranked=bool(FAULTS))
    pair = [Runs.make(tmp_path / name, params, tmp_path / "cache", TARGETS) for name in ("one", "other")]
    for running in [project.start() for project in pair]:
        running.ended_well()
    one, other = (outputs(project.root) for project in pair)
    assert one == other and len(one) > 9


@of_faults
def test_a_killed_task_is_run_again_and_the_run_ends_as_an_undisturbed_one(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Wherever it is: in the clone, in or between pull, repro and push, or before it says what it made."""
    draw = random.Random(SEED)
    killed: Counter[str] = Counter()
    while killed.total() < TASKS or (FAULTS and min(killed[each] for each in PHASES) < LEAST):
        project = make_project(tmp_path / "killed")
        seconds = 0.0  # that the last task took: all take about as long
        for what in ("begin", *STAGES, "publish"):
            if seconds and (where := kill_task(project, what, seconds * draw.random())):
                killed[where] += 1
                record_property("kills of tasks", {where: 1})
            begun = time.monotonic()
            assert project.task("run", what)[0] in (0, 99)  # 99: it was killed after it had made what it makes
            seconds = time.monotonic() - begun
        assert published(project) == undisturbed(tmp_path / "undisturbed")
        shutil.rmtree(project.root)


def kill_task(project: Project, what: str, delay: float) -> str:
    """Kill a task and all below it; returns what it was doing, "" where it had ended."""
    process = project.start("run", what)
    time.sleep(delay)
    where = ""
    if process.poll() is None:
        where = doing(process.pid)
        kill_family(process.pid)
    process.communicate()
    shutil.rmtree(project.root / "work", ignore_errors=True)  # as the end of its container does
    return where


def doing(pid: int) -> str:
    """What a task is doing, by the commands below it: pull, repro, push, looking (what is to do), git, or own work."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = child.cmdline()
            if words[1:3] == ["-m", "dvc"]:
                return words[3] if words[3] in PHASES and "--dry" not in words else "looking"
            if words[:1] == ["git"]:
                return "git"
    return "own work"


def published(project: Project) -> dict[str, str]:
    """Digest by output of what a run published; its content must be in the remote."""
    stages = project.stored("locks/run/dvc.lock")["stages"]
    found = {out["path"]: out["md5"] for entry in stages.values() for out in entry["outs"]}
    assert all((Path(project.remote) / "dvc/files/md5" / md5[:2] / md5[2:]).is_file() for md5 in found.values())
    return found


def undisturbed(folder: Path) -> dict[str, str]:
    """Digest by output of what the stages make of two days."""
    days = "2025-01-01\n2025-01-02\n"
    made = {"data/ingest": days, "models/a": days, "models/b": days * 2, "reports": days * 3}
    for name, text in made.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "text").write_text(text)
    return {name: dvc_md5(folder / name) for name in made}


@of_faults
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
    one, other = (outputs(tmp_path / name) for name in ("one", "other"))
    assert one == other and len(one) > 30
    record_property("outputs", len(one))
