"""Whatever makes an index useless is said before it starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import check_params
from pipeline.recipe import overlay
from pipeline.run import embedded_anew
from slimtower.common.settings import read_mapping
from steps.core.tables import SCHEMAS, table_from_rows, write_table

PROJECT = Path(__file__).parents[2]
TEACHER = {"kind": "dual_encoder", "base": "a", "epochs": 0.0, "max_document_length": 96}


@pytest.fixture
def ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of three documents, in a folder in which nothing ran yet."""
    columns = SCHEMAS["corpus"].names
    rows = [dict(zip(columns, (f"a/{at}", "a", "", "", "text"), strict=False)) for at in range(3)]
    write_table(tmp_path, "corpus", table_from_rows("corpus", rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(
    ingest: Path, teacher: dict[str, Any], before: dict[str, Any] | None = None, stage: str = "teach@dense"
) -> list[str]:
    raw = overlay(read_mapping(PROJECT / "params.yaml"), {"teach": {"teacher": {"dense": teacher}}})
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    if before is not None:
        ran = {"params": {"params.yaml": {"teach.teacher.dense": before}}}
        Path("data/embed").mkdir(parents=True, exist_ok=True)
        Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"teach@dense": ran, "embed": {}}}))
    return embedded_anew(check_params(raw, ""), {stage}, ingest, 300.0)


def test_a_teacher_that_is_trained_is_announced_with_its_cost(ingest: Path) -> None:
    (line,) = lines(ingest, TEACHER | {"epochs": 1.0})
    assert line.startswith("teach.dense is trained") and "3 texts, about 5 minutes" in line
    assert lines(ingest, TEACHER | {"epochs": 1.0}, stage="evaluate") == [], "it stays as it is"
    assert lines(ingest, TEACHER) == [], "a first run, of a teacher as it is"


@pytest.mark.parametrize(
    ("change", "knobs"),
    [
        ({}, ""),
        ({"learning_rate": 1.0}, ""),  # of a training that there is not
        ({"base": "b"}, "base"),
        ({"document_prompt": "passage: "}, "document_prompt"),
        ({"max_document_length": 256}, "max_document_length"),
        ({"epochs": 1.0}, "epochs"),  # it was trained before
    ],
)
def test_another_teacher_than_in_the_last_run_is_announced(ingest: Path, change: dict[str, Any], knobs: str) -> None:
    messages = lines(ingest, TEACHER, TEACHER | change)
    assert [f"another {knobs} than" in line and "3 texts" in line for line in messages] == ([True] if knobs else [])
