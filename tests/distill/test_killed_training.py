"""A training that is killed, three times, and run again ends in the bytes of one that was left alone."""

import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from killed_training import train_student, train_teacher
from scoring_teachers import write_scoring_teachers
from teach_fakes import write_tower, write_world

from slimtower.common.files import read_json, sha256_file

pytestmark = [pytest.mark.slow, pytest.mark.faults("kills")]

SERVER = multiprocessing.get_context("forkserver")  # imports once, then forks a clean process for each training
SERVER.set_forkserver_preload(["killed_training", "steps.distill.run", "steps.teach.dual_encoder"])


def started(body: Callable[..., None], *arguments: object) -> ForkServerProcess:
    process = SERVER.Process(target=body, args=arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server of Python 3.11 imports nothing without it
        process.start()
    return process


def run_to_end(body: Callable[..., None], *arguments: object) -> None:
    process = started(body, *arguments)
    process.join(300)
    assert process.exitcode == 0


@pytest.fixture
def kill_after(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Counts its kills as they happen."""

    def kill(
        mark: Callable[[], object], times: int, delay: float, body: Callable[..., None], *arguments: object
    ) -> None:
        """Run `body` in a process; kill it `delay` seconds after `mark` has changed so often."""
        seen = {mark()}
        process = started(body, *arguments)
        while len(seen) <= times and process.is_alive():
            seen.add(mark())
            time.sleep(0.003)
        time.sleep(delay)
        assert process.is_alive(), "it ended before it could be killed"
        process.kill()
        process.join()
        record_property("kills", {"teach" if body is train_teacher else "distill": 1})

    return kill


def test_a_killed_teacher_ends_in_the_same_bytes(tmp_path: Path, kill_after: Callable[..., None]) -> None:
    world, cache = tmp_path / "world", tmp_path / "killed"
    write_tower(world / "model")
    write_world(world)
    run_to_end(train_teacher, world, tmp_path / "calm", tmp_path / "undisturbed")
    draw = random.Random(4)
    for _ in range(3):
        kill_after(
            lambda: tuple(sorted(path.name for path in cache.glob("teach/*/checkpoint-*"))),  # not those in staging
            draw.randint(1, 2), draw.uniform(0, 0.03), train_teacher, world, cache, tmp_path / "output",
        )  # fmt: skip
        assert list(cache.rglob("checkpoint-*"))
        assert not (tmp_path / "output").exists()
    run_to_end(train_teacher, world, cache, tmp_path / "output")
    for name in ("tower/model.safetensors", "report.json"):
        assert sha256_file(tmp_path / "output" / name) == sha256_file(tmp_path / "undisturbed" / name)
    assert not list(cache.rglob("checkpoint-*"))


NIGHTLY = {
    "2l": 1, "joint": 2, "static": 1, "weighed": 1, "fresh": 1, "layered": 1, "ranked": 2, "joint_late": 1,
    "joint_cross": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("student", "trainings"),
    [("converged", 1), *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY.items())],
)
def test_a_killed_student_ends_in_the_same_bytes(
    tmp_path: Path, embedded: Path, tiny_tower: Path, kill_after: Callable[..., None], student: str, trainings: int
) -> None:
    """Each kill falls into the last of its trainings: the second where there are two."""

    def states() -> tuple[int, ...]:
        times = tuple(path.stat().st_mtime_ns for path in sorted(cache.glob("distill/*/state.pt")))
        return times if len(times) == trainings else ()

    calm, root, cache = tmp_path / "calm", tmp_path / "root", tmp_path / "killed"
    shutil.copytree(embedded, calm)
    if student.startswith("joint_"):
        write_scoring_teachers(calm, tiny_tower)
    shutil.copytree(calm, root)
    run_to_end(train_student, calm, tmp_path / "calm cache", student)
    draw = random.Random(student)
    long = student == "converged"  # killed before it first looks whether it has, between two looks, and in its fall
    for saves in (2, 16, 38) if long else (2, 2, 2):
        kill_after(states, draw.randint(saves, saves + 2), draw.uniform(0, 0.02), train_student, root, cache, student)
        assert len(states()) == trainings
        assert not (root / "models/distill").exists()
    run_to_end(train_student, root, cache, student)
    weights = Path("models/distill") / student
    names = sorted(path.relative_to(calm / weights) for path in (calm / weights).rglob("*.safetensors"))
    assert names
    assert any(name.parts[0] == "teacher" for name in names) == student.startswith("joint")
    for name in names:
        assert sha256_file(root / weights / name) == sha256_file(calm / weights / name)
    assert not list(cache.rglob("state.pt"))
    ends = [read_json(folder / weights / "report.json") for folder in (calm, root)]
    assert ends[0]["steps"] == ends[1]["steps"]
    assert not long or not ends[0]["still_rising"]
