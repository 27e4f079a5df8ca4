"""A task killed wherever it is, run again, leaves what one that was left alone would: a quarter of FAULTS times."""

import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fault_record import FAULTS
from killed_runs import kill_family
from task_project import STAGES, Project, make_project

from steps.promote.dvc_lock import dvc_md5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults("kills"),
    pytest.mark.timeout(4 * 3600),
    pytest.mark.skipif(not FAULTS, reason="make test-faults runs it"),
]

KILLS, LEAST = FAULTS // 4 or 1, 5
PHASES = ("pull", "repro", "push")  # of a task
SEED = 22


def test_a_killed_task_is_run_again_and_the_run_ends_as_an_undisturbed_one(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Wherever it is: in the clone, in or between pull, repro and push, or before it says what it made.

    Half of the kills are at a moment drawn from all, the others in the phase that has had the fewest.
    """
    draw = random.Random(SEED)
    killed: Counter[str] = Counter()
    while killed.total() < KILLS or min(killed[phase] for phase in PHASES) < LEAST:
        project = make_project(tmp_path / "killed")
        seconds = 0.0  # that the last task took: all take about as long
        for task in ("begin", *STAGES, "publish"):
            rarest = min(PHASES, key=lambda phase: killed[phase])
            aim, within = draw.choice([("", seconds), (rarest, 0.5)])
            if seconds and (where := kill_task(project, task, draw.uniform(0, within), aim)):
                killed[where] += 1
                record_property("kills of tasks", {where: 1})
            started = time.monotonic()
            assert project.task("run", task)[0] in (0, 99)  # 99: it was killed after it had made what it makes
            seconds = time.monotonic() - started
        assert published(project) == undisturbed(tmp_path / "undisturbed")
        shutil.rmtree(project.root)


def kill_task(project: Project, task: str, delay: float, aim: str) -> str:
    """Kill a task and all below it, a while after its start or after it began with `aim`.

    Returns what it was doing, "" where it had ended.
    """
    process = project.start("run", task)
    while aim and process.poll() is None and doing(process.pid) != aim:
        time.sleep(0.1)
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
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            words = child.cmdline()
            if words[1:3] == ["-m", "dvc"]:
                return words[3] if words[3] in PHASES and "--dry" not in words else "looking"
            if words[:1] == ["git"]:
                return "git"
    return "own work"


def published(project: Project) -> dict[str, str]:
    """Digest by output of what a run published; its content must be in the remote."""
    stages = project.stored("locks/run/dvc.lock")["stages"]
    outputs = {out["path"]: out["md5"] for entry in stages.values() for out in entry["outs"]}
    assert all((Path(project.remote) / "dvc/files/md5" / md5[:2] / md5[2:]).is_file() for md5 in outputs.values())
    return outputs


def undisturbed(folder: Path) -> dict[str, str]:
    """Digest by output of what the stages make of two days."""
    days = "2025-01-01\n2025-01-02\n"
    texts = {"data/ingest": days, "models/a": days, "models/b": days * 2, "reports": days * 3}
    for name, text in texts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "text").write_text(text)
    return {name: dvc_md5(folder / name) for name in texts}
