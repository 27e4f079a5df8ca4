"""The whole pipeline through DVC, as `make run` starts it: two small data sets, a tiny teacher, every stage real.

One data set is a BEIR folder, the other documentation with simulated clicks, so that mining, training and generation
have something to do.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from whole_run import git_copy, texts, write_beir

from slimtower.registry import client as registry
from steps.tracking import runs as tracking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

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


@pytest.mark.nightly
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
    _check_tracking(project.root)


def _check_tracking(root: Path) -> None:
    """One parent a pipeline run that did something, children below it, reused stages linked to their makers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")
        api = registry.client()
        runs = api.search_runs([tracking.experiment_id(api)], max_results=1000)
    parents = [run for run in runs if "slimtower.pipeline" in run.data.tags]
    assert len(parents) == 3
    assert all(run.info.run_name.startswith("tiny ") for run in parents)
    known = {each.dataset.name for each in parents[0].inputs.dataset_inputs}
    assert known == {"tiny", "docs"} and all(len(run.inputs.dataset_inputs) == 2 for run in parents)
    by_id = {run.info.run_id: run for run in runs}
    for run in runs:
        if run.data.tags.get("slimtower.reused") == "true":
            maker = by_id[run.data.tags["slimtower.made_by"]]
            assert maker.data.tags["slimtower.stage"] == run.data.tags["slimtower.stage"]
            assert maker.info.status == "FINISHED"
            assert maker.data.tags.get("slimtower.reused") != "true"
    assert sum(run.info.run_name.endswith("(reused)") for run in runs) == 11 + 14
    evaluated = [run for run in runs if run.info.run_name == "evaluate"]
    assert all("nDCG_at_10/1l" in run.data.metrics for run in evaluated)
    assert all({"nDCG_at_10", "retention", "times_as_fast"} <= run.data.metrics.keys() for run in parents)
    assert all(run.data.params["students"] and "nDCG@10" in run.data.tags["mlflow.note.content"] for run in parents)
    distilled = [run for run in runs if run.info.run_name == "distill@static"]
    assert distilled[0].data.metrics["validation_cosine"] > 0
    assert "slimtower.model" in distilled[0].data.tags


def test_wrong_data_ends_with_one_clear_line_and_code_3(project: Project) -> None:
    done = replace(project, words=[*project.words, "DATA=nowhere"]).run()
    assert done.returncode == 3
    (complaint,) = [line for line in done.stderr.splitlines() if line.startswith("slimtower:")]
    assert "nowhere" in complaint
    assert "Traceback" not in done.stderr


def test_a_wrong_recipe_ends_before_any_stage(project: Project) -> None:
    recipe = project.root / "recipes" / "wrong.yaml"
    recipe.write_text("# make run RECIPE=recipes/wrong.yaml\nteach: {teacher: {dense: {epoch: 1.0}}}\n")
    command = [sys.executable, "-m", "pipeline.recipe", "recipes/wrong.yaml"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
    recipe.unlink()
    assert done.returncode == 3
    assert "did you mean teach.teacher.dense.epochs?" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_stage_has_its_command_and_its_code_among_its_dependencies() -> None:
    stages = yaml.safe_load(Path("dvc.yaml").read_text())["stages"]
    for name, entry in stages.items():
        stage = entry.get("do", entry)
        assert stage["cmd"].startswith(f"python -m steps.{name}")
        assert {f"steps/{name}", "steps/core"} <= set(stage["deps"])
