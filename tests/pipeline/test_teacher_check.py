"""What a teacher's layers allow is known before anything is taught."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import NAMES, bert, gpt2, tower, write_network
from transformers import AlbertConfig, AlbertModel

from pipeline.data_check import check_layers
from pipeline.params import check_params
from pipeline.recipe import overlay
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping


def teacher(base: Path, students: list[str], **starts: list[int]) -> Any:
    described = {name: {"start": {"layers": layers}} for name, layers in starts.items()}
    raw = overlay(read_mapping(Path("params.yaml")), {"teach": {"teacher": {"dense": {"base": str(base)}}}})
    return check_params(overlay(raw, {"distill": {"students": students, "student": described}}), "params.yaml")


def albert(folder: Path) -> Path:
    config = AlbertConfig(
        vocab_size=len(NAMES), embedding_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return write_network(folder, AlbertModel, config)


def test_a_teacher_without_a_list_of_layers_is_refused_before_it_is_taught(tmp_path: Path) -> None:
    base = tower(tmp_path / "tower", albert(tmp_path / "network"))
    with pytest.raises(UserError, match=r"2l cannot start from the layers of .*AlbertModel.* can start: static"):
        check_layers(teacher(base, ["static", "2l"]))
    check_layers(teacher(base, ["static"]))


def test_so_are_layers_that_the_teacher_does_not_have(tmp_path: Path) -> None:
    base = tower(tmp_path / "tower", bert(tmp_path / "network"))
    with pytest.raises(UserError, match=r"2l: layers \[5\] do not exist.* are 0 to 1"):
        check_layers(teacher(base, ["2l"], **{"2l": [0, 5]}))
    gpt2_tower = tower(tmp_path / "other", gpt2(tmp_path / "gpt2"))
    for folder in (base, gpt2_tower, tmp_path / "gone"):  # what cannot be read is left to teach
        check_layers(teacher(folder, ["2l"], **{"2l": [0, -1]}))
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    check_layers(teacher(tmp_path, ["2l"]))
