"""Killed at random moments and run again, the pipeline ends as one that was left alone.

`make test-nightly` kills once; `make test-faults` sets FAULTS, and then whole runs are killed so often, each stage
at least five times. A quarter of the kills are of tasks: tests/pipeline/test_killed_tasks.py.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_record import FAULTS
from killed_runs import Runs, outputs, small_params

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.faults("kills"), pytest.mark.timeout(4 * 3600)]

TARGETS = () if FAULTS else ("candidates",)
LEAST = 5 if FAULTS else 0  # of a stage
KILLS = FAULTS - FAULTS // 4 or 1
SEED = 22


def test_a_killed_pipeline_ends_as_an_undisturbed_one(
    tmp_path: Path, tiny_tower: Path, record_property: Callable[..., None]
) -> None:
    draw = random.Random(SEED)
    params = small_params(tmp_path, tiny_tower, ranked=bool(FAULTS))
    calm = Runs.make(tmp_path / "calm", params, targets=TARGETS)
    durations = calm.start().ended_well().durations()
    expected, order = outputs(calm.root), list(durations)
    killed: Counter[str] = Counter()
    while min(killed[stage] for stage in order) < LEAST or killed.total() < KILLS:
        project = Runs.make(tmp_path / "killed", params, targets=TARGETS)
        for number, stage in enumerate(order):
            if LEAST and killed.total() >= KILLS and killed[stage] >= LEAST:
                continue
            delay = durations[stage] * draw.uniform(0, 1.05)  # DVC records the stage in the end, or the next has begun
            where = project.start().kill_in(order[number:], delay, stage_only=draw.random() < 0.25)
            if where is None:
                break
            killed[where] += 1
            record_property("kills", {where: 1})  # as it happens: a failure later loses none
            digests = outputs(project.root)
            assert digests == {path: expected[path] for path in digests}, (
                f"killed in {where}: part of an output is there"
            )
        project.start().ended_well()
        assert outputs(project.root) == expected
        assert not list(project.root.glob("[dmr]*/**/.staging.*"))
        shutil.rmtree(project.root)
        record_property("runs", 1)
