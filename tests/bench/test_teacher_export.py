"""The teacher itself, exported with all its layers, is measured beside its students."""

from pathlib import Path

import pytest
from promote_project import copy_project
from sentence_transformers import SentenceTransformer

from bench import teacher_export
from slimtower.common.files import read_json

pytestmark = pytest.mark.medium


def test_an_export_is_the_teacher_and_int8_is_smaller(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_project(released, tmp_path / "run")
    tower = SentenceTransformer(str(released / "models/teach/dense/tower"), device="cpu")
    tower.prompts = {"query": "find: ", "document": ""}  # its queries are read with it, in ONNX too
    tower.save_pretrained(str(tmp_path / "run/models/teach/dense/tower"), create_model_card=False)
    (tmp_path / "run/params.yaml").write_text("distill: {students: [2l, static]}\nteach: {index: dense}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(teacher_export, "TIMED", 5)
    monkeypatch.setattr("sys.argv", ["bench.teacher_export", "--run", str(tmp_path / "run")])
    teacher_export.main()
    result = read_json(teacher_export.RESULT.with_stem("teacher_export.run"))
    full, smaller = "teacher, ONNX fp32", "teacher, ONNX int8"
    assert set(result["systems"]) == {"teacher", full, smaller, "2l", "static"}
    assert result["systems"][smaller]["bytes"] < result["systems"][full]["bytes"]
    for row in result["datasets"].values():
        assert row["retention"][full]["ratio"] == pytest.approx(1, abs=1e-3)
        assert row["retention"][smaller]["ci95_low"] <= row["retention"][smaller]["ratio"]
    assert full in capsys.readouterr().out and Path.cwd() == tmp_path
