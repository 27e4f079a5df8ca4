"""The whole pipeline through DVC, as `make run` starts it: two small data sets, a tiny teacher, every stage real.

One data set is a BEIR folder, the other documentation with simulated clicks, so that mining, training and generation
have something to do.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_run import git_copy, texts, write_beir

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

RECIPE = """\
# make run RECIPE=recipes/tiny.yaml DATA=<folder>
ingest:
  sources:
    - {name: tiny, kind: beir, path: "${DATA}"}
    - {name: docs, kind: api_docs, packages: [networkx], max_documents: 150,
       test_queries: 30, dev_queries: 20}
  max_reject_ratio: 0.5
teach: {teacher: {dense: {base: "${TOWER}", max_triplets: 64, max_document_length: 64, dev_documents: 50}}}
evaluate: {earlier_towers: true}
index: {kind: hnsw}
generate: {max_queries: 20, judge: "${TOWER}", small: {epochs: 0.2}}
embed: {least_texts: 0}
distill:
  students: [static, 1l]
  max_length: 32
"""


@dataclass
class Project:
    """A copy of the project with a recipe for the tiny data."""

    root: Path
    words: list[str]
    environment: dict[str, str]

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the recipe."""
        command = [sys.executable, "-m", "pipeline.recipe", "recipes/tiny.yaml", *self.words]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=self.environment)

    def git_status(self) -> str:
        """What git says of tracked and untracked files."""
        command = ["git", "status", "--porcelain"]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def project(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    environment = git_copy(root, {"recipes/tiny.yaml": RECIPE})
    judged = {"train": slice(0, 40), "dev": slice(40, 52), "test": slice(52, 64)}
    beir = write_beir(root.parent / "beir", judged=judged, part=slice(64))
    with (beir / "corpus.jsonl").open("a") as corpus:
        corpus.write(f'{json.dumps({"_id": texts()[0][0], "text": "a duplicate id"})}\n{{"_id": \n')
    return Project(root, [f"DATA={beir}", f"TOWER={tiny_tower}"], environment)


def test_a_recipe_runs_once_then_does_nothing_then_only_what_changed(project: Project) -> None:
    first = project.run()
    assert first.returncode == 0, first.stdout + first.stderr
    run = project.root / "runs" / "tiny"
    metrics = json.loads((project.root / "reports" / "tiny.metrics.json").read_text())
    assert set(metrics["datasets"]["tiny"]) == {
        "bm25", "base", "teacher", "static", "1l", "teacher+bm25", "static+bm25", "1l+bm25",
    }  # fmt: skip
    assert metrics["audit"]["leaks"] == 0
    assert metrics["queries"] == {"tiny": {"dev": 12, "test": 12}, "docs": {"dev": 20, "test": 30}}
    assert json.loads((run / "data/mine/relevance/report.json").read_text())["rows"]["click_one_hop"] > 0
    assert json.loads((run / "models/teach/dense/report.json").read_text())["triplets"] == 64
    assert json.loads((run / "data/embed/report.json").read_text())["generated_cosine_to_source"] is not None
    rejects = json.loads((run / "data/ingest/report.json").read_text())["rejects"]
    assert {"duplicate_id", "invalid_json"} <= set(rejects)
    assert "http" not in (project.root / "reports" / "tiny.report.html").read_text().split("<body", 1)[0]

    second = project.run()
    assert second.returncode == 0
    assert "nothing to do, every stage is up to date" in second.stdout
    assert "Running stage" not in second.stdout + second.stderr

    recipe = project.root / "recipes" / "tiny.yaml"
    recipe.write_text(RECIPE.replace("max_length: 32", "max_length: 32\n  student: {1l: {learning_rate: 1.0e-3}}"))
    third = project.run()
    assert third.returncode == 0
    lines = (third.stdout + third.stderr).splitlines()
    ran = {line.split("'")[1] for line in lines if line.startswith("Running stage")}
    assert ran == {"distill@1l", "release@1l", "evaluate"}
    recipe.write_text(RECIPE)

    fourth = project.run()
    assert "0 stages ran, 14 reused" in fourth.stdout
    assert project.git_status() == ""
