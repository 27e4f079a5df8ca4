"""Real releases through a registry: what serves after promotion and rollback, and what a champion is worth today."""

import math
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from promote_project import (
    INGEST,
    PARAMS,
    RELEASES,
    REPORTS,
    copy_project,
    params,
    promote,
    release_files,
    write_evaluation,
    write_lock,
)

from pipeline import lineage
from slimtower.common.errors import UserError
from slimtower.registry import client as registry
from slimtower.serving.release import load_release
from steps.core.tables import read_table, write_table
from steps.promote import promotion
from steps.promote import run as commands
from steps.promote.evidence import read_evaluation, read_test_sets
from steps.promote.promotion import Refused
from steps.promote.registry import Registry
from steps.tracking.stage_run import stage_run

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an MLflow database and its artefacts for all tests, a registered model each."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def project(released: Path, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_project(released, tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{server / 'mlflow.db'}")
    monkeypatch.setitem(PARAMS, "name", f"retriever-{uuid.uuid4().hex[:8]}")
    for name in ("SLIMTOWER_PARENT_RUN", "SLIMTOWER_LOCK", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    write_evaluation({"static": 0.5, "2l": 0.6})
    return folder


Switch = pytest.MonkeyPatch


@pytest.fixture
def no_smoke() -> Iterator[Switch]:
    """Leave out the smoke test, which starts a process, where it is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promotion, "smoke_test", lambda registry, version: None)
        yield patch


def champion_files(folder: Path) -> dict[str, bytes]:
    """The release that a service gets from the champion's URI, through MLflow alone."""
    uri = f"models:/{PARAMS['name']}@champion"
    return release_files(Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder))))


@pytest.mark.slow
def test_rollback_brings_back_the_old_encoder_with_its_own_index_byte_for_byte(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = release_files(RELEASES / "static")
    promote()
    first = load_release(RELEASES / "static").query("how to sum the axis", 3)
    promote(params=params(student="2l"))
    after = release_files(RELEASES / "2l")
    assert champion_files(tmp_path / "b") == after
    shutil.rmtree(RELEASES)  # nothing may come from here any more
    commands.run_rollback(params())
    restored = champion_files(tmp_path / "a")
    assert restored == before
    assert {name for name in before if before[name] != after.get(name)} >= {"manifest.json", "serving/serving.json"}
    assert any(name.startswith("index/") and name.endswith(".faiss") for name in restored)

    served = mlflow.pyfunc.load_model(f"models:/{PARAMS['name']}@champion")
    answer = served.predict(pd.DataFrame({"query": ["how to sum the axis"]}), params={"k": 3}).iloc[0]
    assert list(answer["ids"]) == [hit.id for hit in first]
    output = capsys.readouterr().out
    assert "@champion is version 2 now, previous: 1" in output
    assert "@champion is version 1 again, was 2; previous: none" in output
    assert "`make deploy TO=... DEPLOY_FLAGS=--rollback`" in output
    commands.run_history(params())
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in table[1:3]] == [["promoted", "1"], ["promoted", "2"]]
    assert "rolled back to" in table[3]
    assert table[-1] == "champion: 1"


@pytest.mark.slow
def test_a_version_that_changed_in_the_store_is_not_promoted(
    project: Path, server: Path, no_smoke: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote()
    aliases = Registry(PARAMS["name"]).aliases()
    no_smoke.undo()
    store = server / "mlartifacts"
    earlier_files = set(store.rglob("*"))
    download = commands.promote

    def damaged(*args: Any, after: Any = None, **named: Any) -> Any:
        def spoil(step: str) -> None:
            if step == "challenger":
                [index] = [path for path in set(store.rglob("flat.faiss")) - earlier_files if "one" in path.parts]
                index.write_bytes(index.read_bytes()[:-1] + b"x")

        return download(*args, after=spoil, **named)

    monkeypatch.setattr(commands, "promote", damaged)
    with pytest.raises(UserError, match=r"smoke test of .*/2: it does not load and answer: .*flat\.faiss"):
        promote(params=params(student="2l"))
    assert Registry(PARAMS["name"]).aliases() == aliases == {"champion": "1"}


@pytest.mark.slow
def test_a_dry_run_decides_and_changes_nothing(
    project: Path, no_smoke: Switch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", PARAMS["name"])
    promote(dry_run=True)
    assert "approved" in capsys.readouterr().out
    registry = Registry(PARAMS["name"])
    assert (registry.versions(), registry.has_experiment()) == ([], False)
    promote(params=params(student="2l"))
    capsys.readouterr()
    with pytest.raises(Refused, match="static would be refused for the reasons above"):
        promote(dry_run=True)
    assert "  no  one: nDCG@10 0.5000 against 0.6000, -16.67%" in capsys.readouterr().out
    assert (registry.aliases(), len(registry.versions())) == ({"champion": "1"}, 1)


@pytest.mark.slow
def test_a_dry_run_refuses_what_was_rolled_back_as_the_promotion_would(
    project: Path, no_smoke: Switch, capsys: pytest.CaptureFixture[str]
) -> None:
    promote()
    promote(params=params(student="2l"))
    commands.run_rollback(params())
    with pytest.raises(Refused, match="was rolled back at"):
        promote(params=params(student="2l"), dry_run=True)
    capsys.readouterr()
    promote(params=params(student="2l"), dry_run=True, again=True)
    assert "approved" in capsys.readouterr().out


def change_judgements() -> None:
    """Every test query gets a second relevant document."""
    table = read_table(INGEST, "qrels")
    extra = [
        {**row, "doc_id": f"{row['dataset']}/{31 if row['dataset'] == 'one' else 30}", "grade": 2}
        for row in table.to_pylist()
        if row["split"] == "test"
    ]
    rows = [*table.to_pylist(), *extra]
    write_table(INGEST, "qrels", table.from_pylist(rows, schema=table.schema))


def plain_ndcg(
    folder: Path, dataset: str, judged: dict[str, dict[str, int]], texts: dict[str, str]
) -> dict[str, float]:
    """nDCG@10 in float64 from the exact index's own vectors; no ties in this data."""
    release = load_release(folder)
    index = release.index(dataset, "flat")
    documents = index.reconstruct_n(0, index.ntotal).astype(np.float64)
    values = {}
    for query, grades in judged.items():
        order = np.argsort(-(documents @ release.encode([texts[query]])[0].astype(np.float64)), kind="stable")[:10]
        hit_gains = [grades.get(release.documents(dataset).ids[row], 0) for row in order]
        ideal = sorted(grades.values(), reverse=True)[:10]
        gained, best = (sum(g / math.log2(rank + 2) for rank, g in enumerate(gains)) for gains in (hit_gains, ideal))
        values[query] = gained / best
    return values


@pytest.mark.slow
@pytest.mark.nightly
def test_a_champion_is_measured_anew_through_its_own_release_when_the_evaluation_changed(
    project: Path, released: Path, no_smoke: Switch
) -> None:
    promote()
    shutil.rmtree(RELEASES / "static")
    change_judgements()
    shutil.copytree(released / RELEASES / "static", RELEASES / "static")
    write_evaluation({"static": 0.0, "2l": 1.0})
    shutil.rmtree(RELEASES / "static")  # its own release is in the registry
    promote(params=params(student="2l"))

    judged = read_test_sets(INGEST)
    evaluation = read_evaluation(INGEST, judged, [4])
    registry = Registry(PARAMS["name"])
    stored = registry.document("1", f"evidence/{evaluation.digest[:16]}.served.json")
    assert stored is not None
    assert [judged_set.dataset for judged_set in judged] == ["one", "two"]
    for judged_set in judged:
        texts = dict(zip(judged_set.query_ids, judged_set.texts, strict=True))
        expected = plain_ndcg(released / RELEASES / "static", judged_set.dataset, judged_set.qrels, texts)
        assert 0 < sum(expected.values()) < len(expected)
        assert stored["values"][judged_set.dataset] == pytest.approx(expected, abs=1e-6)
    assert stored["p50_ms"] == 0.5
    assert registry.aliases() == {"champion": "2", "previous": "1"}


def test_lineage_leads_from_the_champion_to_its_makers_and_back(
    project: Path, no_smoke: Switch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "p1")
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "c0ffee0" + "0" * 33)
    with stage_run("release@static", {}) as run:
        run.tag("slimtower.image_digest", "sha256:abc")
    lineage.finish()
    Path("images.lock").write_text("cpu: f00d\n")
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "other")  # promoted later, from another commit
    promote()
    capsys.readouterr()

    commands.run_lineage(f"{PARAMS['name']}@champion", params())
    record = yaml.safe_load(capsys.readouterr().out)
    lock = lineage.lock_stages()
    assert record["model"] == f"{PARAMS['name']}/1"
    assert record["git_commit"].startswith("c0ffee0")
    assert record["data"] == {"data/ingest": lock["evaluate"]["deps"][0]["md5"]} | {
        out["path"]: out["md5"] for out in lock["ingest"]["outs"]
    }
    assert record["stages"]["release@static"]["image"] == {"slimtower.image_digest": "sha256:abc"}
    assert record["stages"]["release@static"]["outs"][str(RELEASES / "static")] == record["release"]["md5"]
    assert record["images"] == {"cpu": "f00d"}
    assert record["params"] == {"distill": {"seed": 1}}
    artifact = mlflow.artifacts.download_artifacts(artifact_uri=record["dvc_lock"]["file"])
    assert Path(artifact).read_bytes() == Path("dvc.lock").read_bytes()
    api = registry.client()
    assert api.get_run(record["runs"]["pipeline"]).info.run_name.startswith("demo c0ffee0 ")
    description = api.get_model_version(PARAMS["name"], "1").description
    assert "approved" in description and "# static" in description and description.endswith("**2l** is best.")
    maker = api.get_run(record["stages"]["release@static"]["run"])
    assert maker.data.tags["slimtower.stage"] == "release@static"

    for digest in ("c0ffee0", record["dvc_lock"]["md5"], record["data"]["data/ingest"]):
        commands.run_lineage(digest, params())
        [back] = yaml.safe_load(capsys.readouterr().out)
        assert (back["model"], back["aliases"]) == (record["model"], ["champion"])
    commands.run_lineage("0" * 10, params())
    assert yaml.safe_load(capsys.readouterr().out) == []
    name = PARAMS["name"]
    for wrong, message in ((f"{name}@gone", "no such alias"), (f"{name}/9", "no version '9'"), ("c0", "too short")):
        with pytest.raises(UserError, match=message):
            commands.run_lineage(wrong, params())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (RELEASES / "static/manifest.json", "models/release/static is missing, or does not match dvc.lock"),
        (REPORTS / "per_query.parquet", "per_query.parquet is missing, or does not match dvc.lock"),
        (INGEST / "qrels.parquet", "data/ingest/qrels.parquet is missing, or does not match dvc.lock"),
    ],
)
def test_only_what_the_pipeline_made_is_promoted(project: Path, path: Path, message: str) -> None:
    path.write_bytes(path.read_bytes() + (b"\n" if path.suffix == ".json" else b""))
    if path.suffix == ".parquet":
        table = read_table(path.parent, path.stem)
        write_table(path.parent, path.stem, table.slice(0, table.num_rows - 1))
    with pytest.raises(UserError, match=message):
        promote()
    assert Registry(PARAMS["name"]).versions() == []


def test_a_release_made_after_its_evaluation_is_not_promoted(project: Path) -> None:
    evaluated = yaml.safe_load(Path("dvc.lock").read_text())["stages"]["evaluate"]
    (RELEASES / "static/report.json").write_text("{}")
    write_lock(["static", "2l"])
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    lock["stages"]["evaluate"] = evaluated
    Path("dvc.lock").write_text(yaml.safe_dump(lock))
    with pytest.raises(UserError, match="models/release/static: changed since it was evaluated"):
        promote()
