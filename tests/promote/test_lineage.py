"""Where a release comes from, and what dvc.lock says that it was made of."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from promote_fakes import policy
from promote_project import INGEST, RELEASES, REPORTS, params, promote, write_lock

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.registry import client as registry
from steps.core.tables import table_from_rows, write_table
from steps.promote.dvc_lock import dvc_md5
from steps.promote.evidence import choose_students
from steps.promote.lineage import check_evaluation, check_measured, read_origin, upstream
from steps.promote.promotion import Origin
from steps.promote.registry import Registry
from steps.tracking import runs as tracking


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a pipeline with two releases, and the dvc.lock that records them; nothing else."""
    folder = tmp_path / "clone"
    reports = [REPORTS / name for name in ("per_query.parquet", "slices.parquet", "report.md")]
    for path in (INGEST / "corpus.parquet", *reports):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
    for student in ("static", "2l"):
        manifest = {"student": student, "datasets": {}, "checksum": student}
        write_json(folder / RELEASES / student / "manifest.json", manifest)
        write_json(folder / RELEASES / student / "index/manifest.json", {})
    quality = {student: {"nDCG@10": value} for student, value in {"static": 0.5, "2l": 0.6}.items()}
    latency = {student: {"p50_ms": 1.0} for student in quality}
    metrics = {"retention": quality, "latency": latency, "datasets": {"api": quality}, "datasets_dev": {}}
    write_json(folder / REPORTS / "metrics.json", metrics | {"releases": {student: student for student in quality}})
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for name in ("SLIMTOWER_PARENT_RUN", "SLIMTOWER_AIRFLOW_RUN", "SLIMTOWER_IMAGE_DIGEST", "SLIMTOWER_PIPELINE"):
        monkeypatch.delenv(name, raising=False)
    write_lock(["static", "2l"])
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    folders = (INGEST, RELEASES)  # as dvc.yaml has it
    dependencies = [{"path": path.as_posix(), "md5": dvc_md5(path)} for path in folders]
    lock["stages"]["evaluate"]["deps"] = dependencies
    Path("dvc.lock").write_text(yaml.safe_dump(lock))
    return folder


def origin(student: str) -> Origin:
    return read_origin(Registry("retriever"), check_evaluation(REPORTS, INGEST), student, RELEASES / student, INGEST)


@pytest.mark.medium
def test_a_file_that_is_not_the_pipelines_is_told_before_a_student_is_chosen_by_it(clone: Path) -> None:
    query = {"query_id": "api/q1", "dataset": "api", "split": "test"}
    write_table(INGEST, "queries", table_from_rows("queries", [query | {"text": "a query"}]))
    write_table(INGEST, "qrels", table_from_rows("qrels", [query | {"doc_id": "api/d1", "grade": 1}]))
    write_lock(["static", "2l"])
    write_json(REPORTS / "metrics.json", {})
    with pytest.raises(UserError, match=r"reports/metrics\.json is missing, or does not match dvc\.lock"):
        promote(params=params(student=""))


@pytest.mark.medium
def test_one_fetched_release_is_promoted_without_the_others(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete_tags = origin("static").tags
    assert capsys.readouterr().out == ""
    assert choose_students("", REPORTS, RELEASES, policy())[0] == "2l"
    shutil.rmtree(RELEASES / "2l")
    assert origin("static").tags == complete_tags
    assert "models/release lacks 2l: taken from dvc.lock" in capsys.readouterr().out
    assert choose_students("", REPORTS, RELEASES, policy())[0] == "static"
    write_json(RELEASES / "static/manifest.json", {"student": "another", "datasets": {}})
    with pytest.raises(UserError, match=r"models/release/static is missing, or does not match dvc\.lock"):
        origin("static")
    shutil.rmtree(RELEASES)
    with pytest.raises(UserError, match=r"none of \['2l', 'static'\] has a release in models/release"):
        choose_students("", REPORTS, RELEASES, policy())


@pytest.mark.medium
def test_a_release_made_after_its_evaluation_is_refused_where_another_is_missing(clone: Path) -> None:
    shutil.rmtree(RELEASES / "2l")  # not fetched, or of a student that params name no more: dvc.lock keeps it
    check_measured("static", RELEASES / "static", REPORTS)
    write_json(RELEASES / "static/manifest.json", {"student": "static", "datasets": {}, "checksum": "made later"})
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    lock["stages"]["release@static"]["outs"] = [{"path": "models/release/static", "md5": dvc_md5(RELEASES / "static")}]
    Path("dvc.lock").write_text(yaml.safe_dump(lock))
    origin("static")  # as far as dvc.lock tells
    with pytest.raises(UserError, match=r"static/manifest\.json: the evaluation measured another release of static"):
        check_measured("static", RELEASES / "static", REPORTS)


@pytest.mark.medium
def test_the_schedulers_runs_reach_the_tags(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"pipeline_run", "airflow_run", "image_digest"} & set(origin("2l").tags)
    api = registry.client()
    experiment = tracking.experiment_id(api)
    tags = {"slimtower.git_commit": "c0ffee", "slimtower.airflow_run": "scheduled__1"}
    parent = api.create_run(experiment, tags=tags).info.run_id
    monkeypatch.setenv("SLIMTOWER_PARENT_RUN", parent)
    monkeypatch.setenv("SLIMTOWER_IMAGE_DIGEST", "sha256:abc")
    release_origin = origin("2l")
    assert release_origin.parent_run == parent
    expected = {
        "pipeline_run": parent,
        "git_commit": "c0ffee",
        "airflow_run": "scheduled__1",
        "image_digest": "sha256:abc",
    }
    assert expected.items() <= release_origin.tags.items()
    monkeypatch.setenv("SLIMTOWER_AIRFLOW_RUN", "manual__2")  # this very run
    assert origin("2l").tags["airflow_run"] == "manual__2"
    monkeypatch.setenv("SLIMTOWER_PARENT_RUN", "0" * 32)
    with pytest.raises(UserError, match=r"SLIMTOWER_PARENT_RUN is '0000.* has no such run"):
        origin("2l")


@pytest.mark.medium
def test_the_run_that_ended_with_this_lock_is_found_without_being_named(clone: Path) -> None:
    api = registry.client()
    experiment = tracking.experiment_id(api)
    digest = origin("2l").tags["dvc_lock"]
    for name, lock in (("other", "0" * 64), ("made it", digest), ("reused it", digest)):
        api.create_run(experiment, run_name=name, tags={"slimtower.pipeline": name, "slimtower.dvc_lock": lock})
    assert api.get_run(origin("2l").tags["pipeline_run"]).info.run_name == "made it"


def stage(outs: dict[str, str], deps: dict[str, str]) -> dict[str, Any]:
    return {
        kind: [{"path": path, "md5": md5} for path, md5 in items.items()]
        for kind, items in (("outs", outs), ("deps", deps))
    }


STAGES = {
    "ingest": stage({"data/ingest": "i"}, {"sources.json": "s", "steps/core": "c"}),
    "mine": stage({"data/mine": "old"}, {"data/ingest": "old"}),  # renamed since
    "mine@click": stage({"data/mine/click": "mc"}, {"data/ingest": "i", "data/ingest/impressions.parquet": "x"}),
    "teach": stage({"models/teach": "t"}, {"data/mine/click": "mc"}),
    "learn": stage({"models/teach": "old"}, {"data/other": "o"}),  # the name that teach once had
    "other": stage({"data/other": "o"}, {}),
    "distill@2l": stage({"models/distill/2l": "d"}, {"models/teach": "t"}),
    "distill@1l": stage({"models/distill/1l": "d1"}, {"models/teach": "t"}),
    "release@2l": stage({"models/release/2l": "r"}, {"models/distill/2l": "d"}),
    "release@gone": stage({"models/release/gone": "g"}, {"models/distill/gone": "dg"}),
    "evaluate": stage({"reports/metrics.json": "m"}, {"models/release": "rr", "models/distill": "dd"}),
}


def test_upstream_is_what_the_release_was_made_from_with_its_evaluation() -> None:
    stages = upstream(STAGES, ["release@2l", "evaluate"])
    assert list(stages) == ["ingest", "mine@click", "teach", "distill@2l", "release@2l", "evaluate"]
    assert stages["teach"] is STAGES["teach"]


def test_a_dependency_may_be_inside_or_around_an_output() -> None:
    inside = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data/a/table.parquet": "3"})}
    around = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data": "3"})}
    sibling = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data/ab": "3"})}
    assert [list(upstream(stages, ["b"])) for stages in (inside, around, sibling)] == [["a", "b"], ["a", "b"], ["b"]]
