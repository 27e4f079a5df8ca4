"""The page of all knobs says what each is."""

import re
from typing import Any, get_args

from pydantic import BaseModel

from pipeline.params import Params
from pipeline.params_reference import reference
from slimtower.common.settings import PARAMS, read_mapping
from steps.core.params import MODEL


def models(kind: Any) -> set[type[BaseModel]]:
    """Every model that a type holds, however deep."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {model for part in get_args(kind) for model in models(part)}
    fields = kind.model_fields.values()
    return {kind}.union(*(models(field.annotation) for field in fields if field.annotation is not kind))


def test_every_knob_is_described_and_on_the_page() -> None:
    text, listed = reference(read_mapping(PARAMS)), models(Params) - {Params}
    assert len(listed) > 40
    for model in listed:
        for name, field in model.model_fields.items():
            assert name == "kind" or field.description, f"{model.__name__}.{name} has no docstring"
            assert name == "kind" or f"{name}` | " in text or f"{name}." in text, f"{model.__name__}.{name}"


def test_every_knob_that_names_a_model_is_marked() -> None:
    """By the page, which says of such a knob that it takes a folder or a name."""
    page = reference(read_mapping(PARAMS))
    described = re.findall(
        r"^\| `([a-z_.]+)` \|.*(?:folder or (?:a )?(?:Hugging Face )?name|[Nn]ame or folder)", page, re.M
    )
    fields = [(name, field) for model in models(Params) for name, field in model.model_fields.items()]
    marked = {name for name, field in fields if MODEL in field.metadata}
    assert {name.rpartition(".")[2] for name in described} <= marked and len(described) >= 6
