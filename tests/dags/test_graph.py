"""The graph that Airflow shows is DVC's, read without DVC."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from slimtower_dags.graph import Graph, SettingsError, read_graph

from pipeline.recipe import fill, overlay

PROJECT = Path(__file__).resolve().parents[2]


def dvc_edges(root: Path) -> dict[str, set[str]]:
    """What each stage waits for, as DVC's own index has it."""
    with contextlib.chdir(root), Repo() as repo:  # DVC names stages relative to where it runs
        graph = repo.index.graph
        return {stage.addressing: {producer.addressing for producer in graph.successors(stage)} for stage in graph}


def edges(graph: Graph) -> dict[str, set[str]]:
    return {address: set(before) for address, before in graph.upstream.items()}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that is a DVC project and nothing else."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    return tmp_path


@pytest.mark.medium
def test_the_project_graph_is_that_of_dvc() -> None:
    graph = read_graph(PROJECT)
    assert edges(graph) == dvc_edges(PROJECT)
    assert graph.roots == ["ingest"]
    assert graph.leaves == ["evaluate"]
    ids = [stage.task_id for stage in graph.stages.values()]
    assert "mine-click" in ids
    assert len(set(ids)) == len(ids)


@pytest.mark.medium
@pytest.mark.parametrize("recipe", sorted(path.name for path in (PROJECT / "recipes").glob("*.yaml")))
def test_the_graph_under_a_recipe_is_that_of_dvc(recipe: str, bare: Path) -> None:
    path = PROJECT / "recipes" / recipe
    filled = fill(path.read_text(), dict.fromkeys(["DATA", "UNLABELLED", "RELEVANCE"], "somewhere"), path)
    params = overlay(yaml.safe_load((PROJECT / "params.yaml").read_text()), yaml.safe_load(filled))
    (bare / "params.yaml").write_text(yaml.safe_dump(params))
    shutil.copy(PROJECT / "dvc.yaml", bare)
    graph = read_graph(PROJECT, f"recipes/{recipe}")
    assert edges(graph) == dvc_edges(bare)
    students = [stage.cell for stage in graph.stages.values() if stage.name == "distill"]
    assert students == params["distill"]["students"]


def closure(waits_for: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Every stage that ends before each one starts."""
    upstream: dict[str, set[str]] = {address: set(before) for address, before in waits_for.items()}
    for _ in upstream:
        for before in upstream.values():
            before |= {further for predecessor in before.copy() for further in upstream[predecessor]}
    return upstream


RECIPES = sorted(f"recipes/{path.name}" for path in (PROJECT / "recipes").glob("*.yaml"))


@pytest.mark.medium
@pytest.mark.parametrize("recipe", ["", *RECIPES])
def test_the_drawn_edges_keep_the_order_and_none_is_implied_by_others(recipe: str) -> None:
    graph = read_graph(PROJECT, recipe)
    direct = {address: set(before) for address, before in graph.direct.items()}
    assert closure(direct) == closure(graph.upstream)
    for address, before in direct.items():
        for predecessor in before:
            assert closure(direct | {address: before - {predecessor}}) != closure(direct), (address, predecessor)


@pytest.mark.parametrize(
    ("scorer_names", "scorers"),
    [("late,cross", ["late", "cross"]), ("late, cross", ["late", "cross"]), ("{{ x }}", ["late"])],
)
def test_variables_of_a_recipe_name_stages(scorer_names: str, scorers: list[str]) -> None:
    variables = {"SCORERS": scorer_names, "DATA": "s3://bucket/a: b"}
    graph = read_graph(PROJECT, "recipes/label_free.yaml", variables)
    assert [stage.cell for stage in graph.stages.values() if stage.name == "score"] == scorers
    assert {f"teach@{name}" for name in scorers} <= graph.stages.keys()


@pytest.mark.medium
@pytest.mark.parametrize("scorers", [[], ["other", "third"]])
def test_students_wait_for_the_teachers_that_score_and_for_none_where_none_does(scorers: list[str], bare: Path) -> None:
    params = yaml.safe_load((PROJECT / "params.yaml").read_text())
    params["teach"]["teachers"] = ["dense", *scorers]
    params["teach"]["teacher"] |= {name: {"kind": "dual_encoder"} for name in scorers}
    params["score"]["teachers"] = scorers
    (bare / "params.yaml").write_text(yaml.safe_dump(params))
    shutil.copy(PROJECT / "dvc.yaml", bare)
    graph = read_graph(bare)
    assert edges(graph) == dvc_edges(bare)
    assert graph.upstream["distill@static"] == {
        "ingest", "mine@relevance", "teach@dense", "embed", *(f"score@{name}" for name in scorers)
    }  # fmt: skip
    for name in scorers:
        assert graph.upstream[f"score@{name}"] == {"ingest", "mine@relevance", f"teach@{name}", "embed"}
    assert graph.upstream["embed"] == {"ingest", "generate", "teach@dense"}
    assert "score" in graph.steps  # a deployment may set its resources before there is a scorer


@pytest.mark.medium
def test_every_form_of_dvc_yaml_is_read_as_dvc_reads_it(bare: Path) -> None:
    (bare / "params.yaml").write_text("names: [a, b]\nsizes: {small: {out: s}, large: {out: l}}\nset: {deep: [1, 2]}\n")
    (bare / "dvc.yaml").write_text(
        """
stages:
  first: {cmd: x, outs: [tree: {cache: true}], metrics: [m.json: {cache: false}], plots: [p/a.csv]}
  each: {foreach: "${names}", do: {cmd: x, deps: [tree/part], outs: ["each/${item}"]}}
  sized: {foreach: "${sizes}", do: {cmd: "${key}", deps: [each], outs: ["sized/${item.out}.txt"]}}
  listed: {foreach: [{x: 1}, {x: 2}], do: {cmd: x, deps: [p], outs: ["listed-${item.x}"]}}
  grid:
    matrix: {name: "${names}", deep: "${set.deep}", pair: [[1, 2], [3, 4]]}
    cmd: x
    deps: ["each/${item.name}", m.json]
    outs: ["grid/${item.name}.${item.deep}.${key}"]
  last: {cmd: x, deps: [grid, sized/s.txt, treeish]}
"""
    )
    graph = read_graph(bare)
    assert edges(graph) == dvc_edges(bare)
    assert "grid@a-1-pair0" in graph.stages
    assert graph.upstream["last"] >= {"sized@small"}
    assert not graph.upstream["last"] & {"first", "sized@large"}


def test_what_is_no_graph_ends_with_one_line_that_says_why(tmp_path: Path) -> None:
    for params, stages, message in (
        ("a: 1", "{s: {matrix: {x: '${students}'}, cmd: x}}", "students is not there"),
        ("a: 1", "{s-x: {cmd: x}, s: {foreach: [x], do: {cmd: x}}}", "s-x"),
        ("a: [", "{s: {cmd: x}}", "not YAML"),
        ("a: 1", "{}", "no stages"),
    ):
        (tmp_path / "params.yaml").write_text(params)
        (tmp_path / "dvc.yaml").write_text(f"stages: {stages}")
        with pytest.raises(SettingsError, match=message):
            read_graph(tmp_path)
