"""A machine that has little: the pipeline ends well all the same, and says in its first line what it found.

Emulated at once: an unpacked archive (no .git) below a path with spaces, neither git nor make, a home that cannot be
written, a processor without AVX-512 and bf16, one core, 8 GiB of address space.
"""

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_run import write_beir

from pipeline.limits import GIB
from pipeline.plain_copy import plain_copy

pytestmark = pytest.mark.slow

RECIPE = """\
# make run RECIPE=recipes/tiny.yaml DATA=<folder>
ingest: {sources: [{name: tiny, kind: beir, path: "${DATA}"}]}
teach: {teacher: {dense: {base: "${TOWER}", epochs: 0.0, dev_documents: 20}}}
generate: {max_queries: 0}
embed: {least_texts: 0}
distill: {students: [static], student: {static: {epochs: 2.0, batch_size: 64}}}
index: {kind: flat}
evaluate: {latency_queries: 10}
"""
MISSING = "/proc/nonexistent"  # where not even root can make a folder
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@dataclass
class Poor:
    """A project on a machine that has little."""

    root: Path

    def run(self, *words: str, folder: str = "") -> str:
        """What a module of the project prints; it must end with code 0."""
        (self.root.parent / "bin").mkdir(exist_ok=True)  # without git, without make
        variables = {"PATH": str(self.root.parent / "bin"), "HOME": MISSING, "HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8"}
        environment = variables | AVX2 | {"SLIMTOWER_PRECISION": "fp32", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.root / folder,
            env=environment,
            preexec_fn=_little,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def _little() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))


@pytest.fixture
def poor(tmp_path: Path) -> Poor:
    root = tmp_path / "a path with spaces" / "slimtower"
    plain_copy(Path.cwd(), root)
    (root / "recipes" / "tiny.yaml").write_text(RECIPE)
    return Poor(root)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_recipe_ends_well_on_a_machine_that_has_little(poor: Poor, tiny_tower: Path, tmp_path: Path) -> None:
    judged = {"train": slice(0, 40), "dev": slice(40, 60), "test": slice(60, 80)}
    beir = write_beir(tmp_path / "beir data", judged=judged)
    output = poor.run("pipeline.recipe", "recipes/tiny.yaml", f"DATA={beir}", f"TOWER={tiny_tower}")

    first, second = output.splitlines()[:2]
    match = re.fullmatch(r"pipeline: 1 thread, fp32 \((.+)\), (\d+\.\d) GiB of memory and \d+ GiB of disk free", first)
    assert match is not None, first
    assert match[1] == "AVX2" or os.uname().machine != "x86_64"
    assert float(match[2]) <= 8
    assert second == "pipeline: no git checkout: MLflow's runs name no commit"
    assert "(12 of 12;" in output
    assert not re.search(f"{MISSING}|Traceback|not a git repository", output)

    metrics = json.loads((poor.root / "reports/tiny.metrics.json").read_text())
    assert set(metrics["datasets"]["tiny"]) == {"bm25", "teacher", "static", "teacher+bm25", "static+bm25"}
    assert (poor.root / "reports/tiny.report.html").is_file()
    assert "\nstatic " in poor.run("steps.evaluate", "--table", folder="runs/tiny")
