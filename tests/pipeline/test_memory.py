"""On inputs ten times the demo's every stage stays below the memory that docs/operations.md gives it."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
from dvc.repo import Repo
from fault_record import FAULTS
from killed_runs import Runs
from ten_demos import TEST_FROM, write_ten_demos
from towers import write_wide
from whole_run import params_of

from pipeline.limits import GIB
from pipeline.recipe import overlay

UNDER_LIMIT = Path(__file__).parents[1] / "helpers/under_limit.py"
REFUSED = 4 * GIB  # more than this the kernel gives no stage
CHANGES: dict[str, Any] = {
    "candidates": {"queries": "all"},
    "rank": {
        "rankers": ["cross"],
        "ranker": {"cross": {"precision": "fp32", "max_triplets": 640, "max_queries": 200}},
    },
    "teach": {
        "teachers": ["dense"],
        "teacher": {"dense": {"epochs": 1.0, "max_triplets": 1920, "max_document_length": 96}},
    },
    "generate": {"max_queries": 20_000},
    "embed": {"max_part_texts": 70_000},
    "score": {"teachers": ["cross"], "depth": 4, "max_texts": 1000, "precision": "fp32"},
    "distill": {"student": {"static": {"epochs": 1.0, "batch_size": 1024}, "1l": {"epochs": 0.05, "batch_size": 128}}},
    "evaluate": {"earlier_towers": False},
}  # fmt: skip


def documented() -> dict[str, float]:
    """GiB by stage: the last column of the table."""
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    _, _, section = page.partition("**Memory of each stage**")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+(?:\.\d+)?) \|$", section, re.MULTILINE)
    return {stage: float(gib) for stage, gib in rows}


@pytest.mark.slow
@pytest.mark.faults("memory")
@pytest.mark.timeout(2 * 3600)
@pytest.mark.skipif(not FAULTS, reason="make test-faults runs it")
def test_every_stage_stays_below_its_memory(
    tmp_path: Path, tiny_tower: Path, record_property: Callable[..., None]
) -> None:
    tower = write_wide(tiny_tower, tmp_path / "wide")
    log = write_ten_demos(tmp_path / "log")
    changes = overlay(CHANGES, {"rank": {"ranker": {"cross": {"base": str(tiny_tower)}}}})
    params = params_of("click_log.yaml", tower, changes, DATA=str(log), TEST_FROM=TEST_FROM)
    project = Runs.make(tmp_path / "project", params)
    peaks: dict[str, int] = {}
    for name, command in commands(project.root):
        result = tmp_path / "taken.json"
        words = [sys.executable, str(UNDER_LIMIT), str(REFUSED), str(result), *command]
        done = subprocess.run(words, cwd=project.root, env=environment(project), capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        peaks[name] = json.loads(result.read_text())["peak_bytes"] // 2**20
        record_property("peak MiB", {name: peaks[name]})  # at once: a later stage may fail
        assert peaks[name] <= documented()[name.partition("@")[0]] * 1024, f"{name} took {peaks[name]} MiB"
    assert {name.partition("@")[0] for name in peaks} == set(documented())


def commands(root: Path) -> list[tuple[str, list[str]]]:
    """Name and command of every stage, each behind those that it reads from."""
    with contextlib.chdir(root), Repo() as repo:  # DVC names stages relative to where it runs
        stages = list(networkx.topological_sort(repo.index.graph))[::-1]
        named = [(str(stage.addressing), str(stage.cmd).split()) for stage in stages]
    return [("ingest", [sys.executable, "-m", "steps.ingest", "--list"])] + [
        (name, [sys.executable, *words[1:]]) for name, words in named
    ]


def environment(project: Runs) -> dict[str, str]:
    """Nothing but the project's own settings."""
    dropped = ("SLIMTOWER_", "MLFLOW_", "DVC_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return variables | {"SLIMTOWER_CACHE": str(project.cache), "SLIMTOWER_PIPELINE": "ten demos", "PYTHONPATH": ""}
