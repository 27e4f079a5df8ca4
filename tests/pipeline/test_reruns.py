"""What an edit makes DVC run again, asked of DVC in a copy of the project whose outputs are fakes."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo

from pipeline import surroundings
from pipeline.plain_copy import plain_copy
from slimtower.common.files import read_json
from steps.core.code import closure

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]
CELLS = {name: [f"{name}@{student}" for student in ("static", "4l")] for name in ("distill", "release")}
MINE = {f"mine@{signal}" for signal in ("click", "judged", "relevance")}
ALL = {"ingest", "candidates", *MINE, "rank@cross", "teach@dense", "teach@other", "generate", "embed", "score@other",
       *CELLS["distill"], "index", *CELLS["release"], "evaluate"}  # fmt: skip
TEACHERS = {"teach@dense", "teach@other"}
TRAINED = TEACHERS | {"rank@cross"}


@dataclass
class Project:
    """A copy of the project that dvc.lock says is up to date."""

    root: Path
    repo: Repo

    def reruns(self) -> set[str]:
        """Stages of which DVC sees another command, dependency or param than dvc.lock has: it takes seconds to look."""
        status: Mapping[str, Any] = self.repo.status()
        return {
            stage
            for stage, changes in status.items()
            if any(change == "changed command" or "changed deps" in change for change in changes)
        }

    def after(self, name: str, content: str) -> set[str]:
        """`reruns` while a file holds something else."""
        path = self.root / name
        before = path.read_bytes()
        path.write_text(content)
        try:
            return self.reruns()
        finally:
            path.write_bytes(before)

    def readers(self, *names: str) -> set[str]:
        """Stages that depend on one of these files, or on a folder above it."""
        paths = [self.root / name for name in names]
        assert all(path.exists() and not self.repo.dvcignore.is_ignored_file(str(path)) for path in paths)
        return {
            stage.addressing
            for stage, dep in self._deps()
            if not isinstance(dep, ParamsDependency) and any(path.is_relative_to(dep.fs_path) for path in paths)
        }

    def readers_of_key(self, file: str, key: str) -> set[str]:
        """Stages that depend on a key of a file of params, or on one above or below it."""
        return {
            stage.addressing
            for stage, dep in self._deps()
            if isinstance(dep, ParamsDependency) and dep.def_path == file
            for read in dep.params
            if f"{key}.".startswith(f"{read}.") or f"{read}.".startswith(f"{key}.")
        }

    def _deps(self) -> Iterator[tuple[Any, Any]]:
        return ((stage, dep) for stage in self.repo.index.stages for dep in stage.deps)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("reruns") / "project"
    plain_copy(ROOT, root)
    surroundings.lay_out(root)
    _with_a_scorer(root / "params.yaml")
    (root / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
    with contextlib.chdir(root), Repo() as repo:  # DVC names stages relative to where it runs
        outs = [Path(out.fs_path) for stage in repo.index.stages for out in stage.outs]
        for path in (path for path in outs if not path.suffix):
            path.mkdir(parents=True)
        for path in (path for path in outs if path.name == "earlier"):
            (path / "towers.json").write_text("no towers yet")
        within = [Path(dep.fs_path) for stage in repo.index.stages for dep in stage.deps]
        for path in (path for path in (*outs, *within) if not path.exists()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"stands for {path.name}")
        repo.commit(force=True)
        watched = Project(root, repo)
        assert watched.reruns() == set()
        yield watched


def _with_a_scorer(path: Path) -> None:
    """A ranker in params.yaml, and a second teacher, which scores."""
    params = yaml.safe_load(path.read_text())
    params["teach"]["teachers"].append("other")
    params["teach"]["teacher"]["other"] = dict(params["teach"]["teacher"]["dense"])
    params["score"]["teachers"].append("other")
    params["rank"]["rankers"].append("cross")
    path.write_text(yaml.safe_dump(params))


@pytest.mark.slow
def test_dvc_reruns_what_depends_on_a_change(project: Project) -> None:
    """What the tests below take for granted: a file, a knob that params.yaml does not name, a table, a model."""
    code = (project.root / "steps/scorers/base.py").read_text()
    assert project.after("steps/scorers/base.py", f"{code}\n# an edit\n") == project.readers("steps/scorers/base.py")
    params = yaml.safe_load((project.root / "params.yaml").read_text())
    params["ingest"]["seed"] = 99
    assert project.after("params.yaml", yaml.safe_dump(params)) == {"ingest"}
    assert project.after("data/ingest/relevance.parquet", "new rows") == {"mine@relevance", *TEACHERS, "evaluate"}
    models = read_json(project.root / "models.json") | {"rank": {"/a/folder": "a digest"}}
    assert project.after("models.json", json.dumps(models)) == {"rank@cross"}


def test_running_tracking_serving_describing_testing_and_promoting_rerun_nothing(project: Project) -> None:
    edited = [
        "pipeline/__main__.py", "pipeline/params.py", "pipeline/task/stage.py", "steps/promote/gate.py",
        "steps/promote/params.py", "slimtower/search.py", "slimtower/service/app.py", "slimtower/registry/client.py",
        "slimtower/engines/kinds/milvus.py", "steps/tracking/runs.py", "steps/tracking/stage_run.py",
        "steps/frame/stage.py", "steps/frame/self_check.py", "README.md", "docs/operations.md", "Makefile",
        "pyproject.toml", "recipes/scifact.yaml", "bench/gate.py", "dags/retrain.py", "tests/conftest.py",
    ]  # fmt: skip
    assert project.readers(*edited) == set()


@pytest.mark.parametrize("step", sorted({stage.partition("@")[0] for stage in ALL}))
def test_code_and_params_of_a_step_rerun_that_step_alone(project: Project, step: str) -> None:
    step_stages = {stage for stage in ALL if stage.partition("@")[0] == step}
    assert project.readers(f"steps/{step}/params.py", f"steps/{step}/run.py") == step_stages


@pytest.mark.parametrize("step", sorted(read_json(ROOT / "models.json")))
def test_another_model_in_a_folder_reruns_the_step_that_names_it(project: Project, step: str) -> None:
    step_stages = {stage for stage in ALL if stage.partition("@")[0] == step}
    assert project.readers_of_key("models.json", step) == step_stages


def test_what_stages_share_reruns_those_that_use_it(project: Project) -> None:
    assert project.readers("slimtower/serving/release.py") == {"index", *CELLS["release"], "evaluate"}
    assert project.readers("steps/core/tables.py") == ALL
    assert project.readers("slimtower/common/files.py") == ALL
    asking = {"embed", "score@other", *TEACHERS, *CELLS["distill"], "evaluate"}
    assert project.readers("steps/endpoint/client.py", "steps/endpoint/module.py") == asking
    assert project.readers("steps/encoders/towers.py") == ALL - {"ingest"}
    changed = project.readers("steps/training/distributed.py", "steps/training/checkpoint_files.py")
    assert changed == TRAINED | set(CELLS["distill"])


def test_what_finds_documents_before_an_index_reruns_the_stages_that_search_or_order(project: Project) -> None:
    searching = TRAINED | {"candidates", "score@other", *CELLS["release"], "evaluate"}
    assert project.readers("steps/retrieval/exact_search.py") == searching | {"embed", *CELLS["distill"]}
    assert project.readers("slimtower/lexical/bm25.py") == searching - {"score@other"}
    assert project.readers("steps/scorers/base.py") == {"score@other", *CELLS["distill"], "evaluate"}
    networks = [f"steps/retrieval/{name}.py" for name in ("late_interaction", "rankers")]
    for network in networks:  # may train along with a student
        assert project.readers(network) == searching | set(CELLS["distill"])


@pytest.mark.parametrize(
    ("knob", "reruns"),
    [
        ("promote.policy.margin", {"evaluate"}),  # by which it chooses a student
        ("promote.policy.max_p50_ms", set()),
        ("distill.student.1l.epochs", set()),  # described, but not among the students
        ("distill.student.4l.epochs", {"distill@4l"}),
        ("distill.repeats.titles", set(CELLS["distill"])),
        ("distill.students", {"evaluate"}),
        ("evaluate.budget_ms", {"evaluate"}),
        ("evaluate.earlier_towers", {"evaluate"}),
        ("teach.teacher.dense.seed", {"teach@dense"}),
        ("teach.teacher.other.seed", {"teach@other"}),
        ("rank.ranker.cross.seed", {"rank@cross"}),
        ("candidates.depth", {"candidates"}),
        ("rank.rankers", MINE),
        ("score.batch_size", {"score@other"}),
        ("embed.neighbours", {"embed"}),
        ("ingest.seed", {"ingest"}),  # params.yaml does not name it, nor the next
        ("generate.small.epochs", {"generate"}),
        ("distill.convergence.max_steps", set(CELLS["distill"])),
    ],
)
def test_a_knob_reruns_the_stages_that_read_it(project: Project, knob: str, reruns: set[str]) -> None:
    assert project.readers_of_key("params.yaml", knob) == reruns


@pytest.mark.parametrize(
    ("table", "reruns"),
    [
        ("unlabelled_queries", {"embed", *CELLS["release"], "evaluate"}),
        ("impressions", {*MINE, *TEACHERS, "evaluate"}),
        ("relevance", {"mine@relevance", *TEACHERS, "evaluate"}),
        ("term_scores", {*MINE, "evaluate"}),
        ("given_triplets", {*MINE, "evaluate"}),
        ("qrels", {"candidates", *MINE, *TRAINED, "score@other", *CELLS["distill"], *CELLS["release"], "evaluate"}),
        ("rejects", {"evaluate"}),
        ("queries", ALL - {"ingest"}),
        ("corpus", ALL - {"ingest"}),
    ],
)
def test_a_table_of_ingest_reruns_the_stages_that_read_it(project: Project, table: str, reruns: set[str]) -> None:
    """New unlabelled queries retrain no teacher."""
    assert project.readers(f"data/ingest/{table}.parquet") == reruns


def test_what_one_teacher_leaves_reruns_those_that_read_it(project: Project) -> None:
    of_index = project.readers("models/teach/dense/report.json")
    assert of_index == {"evaluate"}
    assert project.readers("models/teach/dense/earlier/towers.json") == {"evaluate"}
    # any teacher may be one of evaluate.rerankers
    assert project.readers("models/teach/other/earlier/towers.json") == {"evaluate"}
    assert project.readers("models/teach/other/report.json") == {"score@other", "evaluate"}


def test_another_ranker_reruns_mining_and_the_teachers_whose_rounds_it_may_check(project: Project) -> None:
    with contextlib.chdir(project.root):
        tower = project.root / "data/rank/cross/tower"
        tower.write_text("other weights")
        assert project.reruns() == {"mine@relevance", *TEACHERS}
        tower.unlink()
    assert project.reruns() == set()


def test_a_command_has_the_name_of_its_cell_alone_from_outside() -> None:
    """A knob in it would be a dependency that only DVC's status shows."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    commands = [stage.get("do", stage)["cmd"] for stage in stages]
    assert {name for command in commands for name in re.findall(r"\$\{([a-z]+)", command)} == {"item", "key"}


def test_a_stage_depends_on_all_code_that_it_imports(project: Project) -> None:
    for stage in project.repo.index.stages:
        step = Path("steps") / stage.name.partition("@")[0]
        modules = [f"steps.{step.name}.{path.stem}" for path in (ROOT / step).glob("*.py") if path.stem != "__init__"]
        files = {Path(*module.split(".")) for module in closure(*modules)} - {Path("steps"), Path("slimtower")}
        deps = {Path(dep.def_path) for dep in stage.deps}
        silent = {"steps/tracking", "steps/frame", "slimtower/registry", "slimtower/engines"}  # they decide no output
        if step.name in {"ingest", "candidates", "mine", "rank", "generate", "index", "release"}:
            silent |= {"steps/endpoint"}  # a teacher behind an API is asked by the others alone
        named = deps | {Path(room) for room in silent}
        missed = {path for path in files if not named & {path, path.with_suffix(".py"), *path.parents}}
        assert missed == set(), stage.name
