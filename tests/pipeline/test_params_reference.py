"""The page of all knobs says what each is, and params.yaml stays short enough to be read."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pipeline.params import Params, check_params
from pipeline.params_reference import reference
from slimtower.common.settings import PARAMS, read_mapping

LINES = 150  # of params.yaml, all told


def models(kind: Any) -> set[type[BaseModel]]:
    """Every model that a type holds, however deep."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {model for part in get_args(kind) for model in models(part)}
    fields = kind.model_fields.values()
    return {kind}.union(*(models(field.annotation) for field in fields if field.annotation is not kind))


def test_params_yaml_is_short() -> None:
    assert len(PARAMS.read_text(encoding="utf-8").splitlines()) <= LINES


def test_every_knob_is_described_and_on_the_page() -> None:
    text, found = reference(read_mapping(PARAMS)), models(Params) - {Params}
    assert len(found) > 40
    for model in found:
        for name, field in model.model_fields.items():
            assert name == "kind" or field.description, f"{model.__name__}.{name} has no docstring"
            assert name == "kind" or f"{name}` | " in text or f"{name}." in text, f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    ("section", "knob", "value"),
    [("mine", "max_associations", 7), ("ingest", "max_reject_ratio", 0.5), ("evaluate", "rerank_depth", 50)],
)
def test_a_knob_that_the_file_does_not_name_can_be_set(section: str, knob: str, value: float) -> None:
    raw = read_mapping(PARAMS)
    assert knob not in raw[section]
    raw[section][knob] = value
    held = getattr(check_params(raw, "params.yaml"), section)
    assert getattr(held, knob) == value
