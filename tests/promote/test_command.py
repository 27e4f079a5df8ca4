"""`python -m steps.promote`: its options do what they say, and its exit codes are those that schedulers read."""

import shutil
import socket
import sys
from pathlib import Path

import pytest
from promote_project import PARAMS, copy_project, write_evaluation, write_lock

from slimtower.common.errors import EXIT_DATA, EXIT_TRANSIENT, guarded
from slimtower.common.files import read_json, write_json
from steps.promote import promotion
from steps.promote.__main__ import main
from steps.promote.registry import Registry

pytestmark = pytest.mark.medium


@pytest.fixture
def project(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_project(released, tmp_path / "project")
    shutil.copyfile(Path(__file__).parents[2] / "params.yaml", folder / "params.yaml")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("SLIMTOWER_LOCK", raising=False)
    monkeypatch.setattr(promotion, "smoke_test", lambda registry, version: None)
    write_evaluation({"static": 0.5, "2l": 0.6})
    return folder


def code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["steps.promote", "--name", PARAMS["name"], *words])
    try:
        guarded(main)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.slow
def test_a_choice_that_the_gate_refuses_leaves_its_place_to_the_best(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice may lose 2 % of nDCG@10, the gate allows 0.5 %: else no retraining would ever be promoted again."""
    assert code(monkeypatch, "--student", "2l") == 0
    for student in ("static", "2l"):
        (project / "models/release" / student / "report.json").write_text('{"another": "release"}')
    write_evaluation({"static": 0.1, "2l": 0.6})
    metrics = read_json(project / "reports/metrics.json")
    write_json(project / "reports/metrics.json", metrics | {"choice": {"student": "static"}})
    write_lock(["static", "2l"])
    capsys.readouterr()
    assert code(monkeypatch, "--dry-run") == 0
    assert code(monkeypatch) == 0
    output = capsys.readouterr().out
    assert "static would be refused" in output and " refused, no alias was moved: " in output
    assert output.count("2l, the best by nDCG@10, is offered in its place") == 2
    registry = Registry(PARAMS["name"])
    assert registry.tags(registry.aliases()["champion"])["student"] == "2l" and registry.aliases()["previous"] == "1"

    for words in (["--dry-run"], []):
        assert code(monkeypatch, *words) == EXIT_DATA, "the choice is refused, and the best serves already"

    assert code(monkeypatch, "--rollback") == 0
    assert code(monkeypatch) == EXIT_DATA, "what was rolled back stays so"
    assert registry.aliases()["champion"] == "1"


@pytest.mark.slow
def test_promote_refuse_roll_back_and_look(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(monkeypatch, "--rollback") == EXIT_DATA
    assert "no previous champion to go back to" in capsys.readouterr().err
    assert code(monkeypatch, "--student", "static") == 0
    assert code(monkeypatch) == 0  # the best of those within the budgets
    aliases = Registry(PARAMS["name"]).aliases()
    assert aliases == {"champion": "2", "previous": "1"}

    (project / "models/release/static/report.json").write_text('{"another": "release"}')
    write_evaluation({"static": 0.1, "2l": 0.6})
    capsys.readouterr()
    for words in (["--student", "static", "--dry-run"], ["--student", "static"]):
        assert code(monkeypatch, *words) == EXIT_DATA
        out, err = capsys.readouterr()
        assert err.strip().splitlines()[-1].startswith("slimtower: ")
        assert (out + err).count("one: nDCG@10 0.1000 against 0.6000") == 1, "the reason is said once"
        assert Registry(PARAMS["name"]).aliases() == aliases

    monkeypatch.setenv("SLIMTOWER_AIRFLOW_RUN", "rollback/manual__1")
    for line in ("@champion is version 1 again", "rollback: rollback/manual__1 went back already; nothing to do"):
        assert code(monkeypatch, "--rollback") == 0
        assert line in capsys.readouterr().out
        assert Registry(PARAMS["name"]).aliases() == {"champion": "1"}
    assert code(monkeypatch, "--history") == 0
    table = capsys.readouterr().out
    assert all(word in table for word in ("promoted", "refused", "rolled back to"))
    assert code(monkeypatch, "--lineage", f"{PARAMS['name']}@champion") == 0
    assert "student: static" in capsys.readouterr().out


def test_an_unreachable_server_may_be_tried_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert code(monkeypatch, "--student", "static") == EXIT_TRANSIENT


def test_without_a_pipeline_run_nothing_is_promoted(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("dvc.lock").unlink()
    assert code(monkeypatch, "--student", "static") == EXIT_DATA
    assert "dvc.lock: not found or empty; run `dvc repro`" in capsys.readouterr().err
