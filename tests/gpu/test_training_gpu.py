"""Teachers and students train on a GPU, and towers read there as elsewhere (`pytest -m gpu`)."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from late_fakes import LATE
from llm_fakes import LLM_PARAMS, write_llm, write_titled_world
from rank_fakes import write_encoder
from scoring_teachers import joint, write_scoring_teachers
from stages import distill_params, run_distill, run_embed, run_score
from teach_fakes import EVERYTHING, write_tower, write_world

from slimtower.common.files import read_json
from slimtower.common.settings import validated
from steps.core.tables import read_table
from steps.encoders.towers import load_tower
from steps.teach.kinds.base import Teacher
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.gpu
CROSS = {
    "kind": "cross_encoder",
    "loss": "softmax",
    "pooling": "segments",
    "scale": 0.05,
    "batch_size": 8,
    "max_length": 48,
}


@pytest.fixture(autouse=True)
def one_gpu() -> None:
    assert torch.cuda.is_available(), "torch sees no GPU"


def trained(folder: Path, teacher: Teacher, base: Path, titled: bool = False) -> Path:
    ingest, mine = (write_titled_world if titled else write_world)(folder)
    chosen = teacher.model_copy(update={"base": str(base), "precision": "auto"})
    output = folder / "teacher"
    teach(ingest=ingest, mine=mine, output=output, params=chosen, run=NullRun(), rankers=folder / "rank")
    return output


def test_every_kind_of_teacher_trains(tmp_path: Path) -> None:
    cross = validated(CrossEncoder, CROSS | {"base": "set below", "dev_queries": 4}, "test")
    tower = write_tower(tmp_path / "tower")
    for name, teacher, base in (
        ("dual", EVERYTHING, tower),
        ("llm", LLM_PARAMS, write_llm(tmp_path / "llm-base", torch.bfloat16)),
        ("late", LATE, tower),
        ("cross", cross, write_encoder(tmp_path / "encoder")),
    ):
        output = trained(tmp_path / name, teacher, base, titled=name == "llm")
        assert "note" not in read_json(output / "report.json"), name
        assert (output / "tower").is_dir(), name


def test_a_tower_reads_as_on_a_cpu(tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_embed(tmp_path / "gpu", tiny_tower)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "another"))
    run_embed(tmp_path / "cpu", tiny_tower)
    for name in ("documents.npy", "alignment.npy"):
        there, here = (np.load(tmp_path / machine / "data/embed" / name) for machine in ("gpu", "cpu"))
        np.testing.assert_allclose(there, here, atol=2e-3)


def test_students_learn_from_teachers_of_every_kind(tiny_tower: Path, tmp_path: Path) -> None:
    run_embed(tmp_path, tiny_tower)
    write_scoring_teachers(tmp_path, tiny_tower)
    for teacher in ("late", "cross"):
        scores = read_table(run_score(tmp_path, teacher), "scores")
        assert np.isfinite(scores["score"].to_numpy()).all(), teacher
    students = {"static": None, "2l": None, "late": joint("late"), "cross": joint("cross")}
    described = distill_params().student | {name: student for name, student in students.items() if student}
    params = distill_params(student=described)
    for student in students:
        output = run_distill(tmp_path, student, params)
        tower = load_tower(output / "query_encoder")
        assert tower.device.type == "cuda" and all(weight.isfinite().all() for weight in tower.parameters()), student
        assert math.isfinite(read_json(output / "report.json")["texts_seen"])
