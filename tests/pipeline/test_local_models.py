"""models.json: a model folder that params.yaml names has a digest that changes with its files, by stage."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.local_models import STAGES, write_models
from pipeline.params import check_params
from steps.core.files import read_json

TRACKED = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))


def test_the_tracked_file_is_that_of_the_tracked_params(tmp_path: Path) -> None:
    write_models(check_params(TRACKED, "params.yaml"), tmp_path / "models.json")
    assert (tmp_path / "models.json").read_bytes() == Path("models.json").read_bytes()


def test_a_folder_that_changes_in_place_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tower", "start", "planner", "bart"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_text(name)
    own = tmp_path / "models/teach/dense/tower"
    own.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    raw: dict[str, Any] = copy.deepcopy(TRACKED)
    raw["teach"]["teacher"]["dense"]["base"] = "tower"
    raw["mine"]["planner_model"] = str(tmp_path / "planner")
    raw["generate"]["model"] = "bart"
    raw["distill"]["students"] = ["4l", "2l"]
    raw["distill"]["student"]["4l"]["start"] = {"base": "start"}
    raw["distill"]["student"]["2l"]["start"] = {"adapter": "models/teach/dense/tower"}  # of this run: a dependency

    def written() -> dict[str, Any]:
        write_models(check_params(raw, "params.yaml"), tmp_path / "models.json")
        found: dict[str, Any] = read_json(tmp_path / "models.json")
        return found

    before = written()
    named = {stage: list(folders) for stage, folders in before.items()}
    assert named == {stage: [] for stage in STAGES} | {
        "teach": ["tower"], "mine": [str(tmp_path / "planner")], "generate": ["bart"], "distill": ["start"],
    }  # fmt: skip
    assert written() == before
    for changed in ("tower/model.safetensors", "tower/1_Pooling/config.json"):
        (tmp_path / changed).write_text("anew")
        after = written()
        assert {stage for stage in STAGES if after[stage] != before[stage]} == {"teach"}
        before = after
