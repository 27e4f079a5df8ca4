"""models.json: a model folder that params.yaml names has a digest that changes with its files, by stage."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import check_params, named_models
from pipeline.prepare import checked_models, keep_models, write_models
from slimtower.common.files import read_json

TRACKED = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))


def test_the_tracked_file_is_that_of_the_tracked_params(tmp_path: Path) -> None:
    write_models(named_models(check_params(TRACKED, "params.yaml")), tmp_path / "models.json")
    assert (tmp_path / "models.json").read_bytes() == Path("models.json").read_bytes()


def test_what_a_checked_file_names_is_kept_until_file_or_code_changes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "params.yaml"
    path.write_text("teach: {}")
    assert checked_models(path) is None
    keep_models({"teach": ["a", "of/hub"]}, path)
    assert checked_models(path) == {"teach": ["a", "of/hub"]}
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/params.py").write_text("# other code")
    assert checked_models(path) is None
    (tmp_path / "steps/params.py").unlink()
    [kept_models] = own_cache.glob("params/*.json")
    for damaged in ("", "[1]", '{"teach": 1}'):
        kept_models.write_text(damaged)
        assert checked_models(path) is None
    path.write_text("teach: {index: b}")
    assert checked_models(path) is None


def test_a_folder_that_changes_in_place_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tower", "start", "base", "bart"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_text(name)
    teacher = tmp_path / "models/teach/dense/tower"
    teacher.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    raw: dict[str, Any] = copy.deepcopy(TRACKED)
    raw["teach"]["teacher"]["dense"]["base"] = "tower"
    raw["candidates"]["base"] = str(tmp_path / "base")
    raw["generate"]["model"] = "bart"
    raw["distill"]["students"] = ["4l", "2l"]
    raw["distill"]["student"]["1l"]["start"] = {"base": "bart"}  # described, but of no run
    raw["distill"]["student"]["4l"]["start"] = {"base": "start"}
    raw["distill"]["student"]["2l"]["start"] = {"adapter": "models/teach/dense/tower"}  # of this run: a dependency

    def written() -> dict[str, Any]:
        write_models(named_models(check_params(raw, "params.yaml")), tmp_path / "models.json")
        digests: dict[str, Any] = read_json(tmp_path / "models.json")
        return digests

    before = written()
    named = {stage: list(folders) for stage, folders in before.items()}
    assert named == {
        "candidates": [str(tmp_path / "base")], "rank": [], "teach": ["tower"], "generate": ["bart"],
        "distill": ["start"],
    }  # fmt: skip
    assert written() == before
    for changed in ("tower/model.safetensors", "tower/1_Pooling/config.json"):
        (tmp_path / changed).write_text("anew")
        after = written()
        assert {stage for stage in named if after[stage] != before[stage]} == {"teach"}
        before = after
    (tmp_path / "tower/.git").mkdir()
    (tmp_path / "tower/.git/HEAD").write_text("fetched")
    assert written() == before, "what git keeps is no part of a model"


def test_of_a_model_behind_an_api_the_tokenizer_is_a_folder_and_the_model_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("words", "served"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    rented = {"kind": "endpoint", "model": "served", "tokenizer": "words", "query": {}, "document": {}}
    rented |= {"connection": {"base_url": "http://localhost:1/v1", "key_variable": "", "max_tokens_total": 0}}
    raw: dict[str, Any] = copy.deepcopy(TRACKED)
    raw["teach"] = {"teachers": ["rented"], "index": "rented", "teacher": {"rented": rented}}
    raw["distill"]["students"] = ["static"]
    write_models(named_models(check_params(raw, "params.yaml")), tmp_path / "models.json")
    assert list(read_json(tmp_path / "models.json")["teach"]) == ["words"]
