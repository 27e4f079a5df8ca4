"""recipes/lead.yaml from end to end: a student whose teacher trained along is released and measured."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from whole_run import params_of, run_all, write_beir

from slimtower.common.files import read_json
from slimtower.common.settings import read_mapping
from slimtower.serving.release import load_release


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_student_whose_teacher_trains_along_is_released(tmp_path: Path, tiny_tower: Path) -> None:
    data = tmp_path / "given"
    write_beir(data, judged={"train": slice(40), "dev": slice(40, 60), "test": slice(60, 90)})
    small = {"teach": {"teacher": {"late": {"dim": 8, "max_document_length": 64, "dev_queries": 0}}}}
    along = read_mapping(Path("recipes/lead.yaml"))["distill"]["student"]["lead"]["then"]
    along[0]["losses"][-1]["layers"] = 1  # the tiny tower has two
    lead = {"epochs": 1.0, "batch_size": 16, "start": {"layers": [0, -1]}, "then": along}
    students = {"4l": {"epochs": 1.0, "start": {"layers": [-1]}}, "lead": lead}
    changes = {"distill": {"students": ["4l", "lead"], "student": students}, "embed": {"least_texts": 40}}
    params = params_of("lead.yaml", tiny_tower, small | changes, DATA=str(data))
    assert params.distill.described("lead").then[0].trained == "late"
    run_all(tmp_path, params)
    report = read_json(tmp_path / "models/distill/lead/report.json")
    folders = tmp_path / "models/distill/lead/teacher/tower", tmp_path / "models/teach/late/tower"
    after, before = (load_file(next(folder.rglob("model.safetensors"))) for folder in folders)
    assert report["steps"] > 0 and any(not torch.equal(after[name], before[name]) for name in before)
    metrics = read_json(tmp_path / "reports/metrics.json")
    assert {"teacher", "4l", "lead"} <= set(metrics["datasets"]["own"])
    release = load_release(tmp_path / "models/release/lead")
    assert release.encoder.encode(["a list of words"]).shape == (1, release.manifest.dim)
