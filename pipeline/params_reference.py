"""python -m pipeline.params_reference: docs/params.md, every knob with its type, bounds, default and description."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.params import Params
from slimtower.common.errors import UserError, guarded
from slimtower.common.settings import PARAMS, Strict, read_mapping

PAGE = Path("docs/params.md")
_BEGIN = """\
# Knobs

Every knob of [params.yaml](../params.yaml), one section a stage. The file names what people change. A knob that it does
not name has the default below; to set it, name it there or in a recipe. `python -m pipeline` checks all of them before
it starts.

A default in **bold** is what params.yaml says, **as there** where it is long. A number's description begins with what
it counts or measures. `NAME` is a name of your own. Written by `python -m pipeline.params_reference`.
"""
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def reference(params: dict[str, Any]) -> str:
    """The page, for a params.yaml that holds these `params`."""
    parts, listed = [_BEGIN], set[type]()
    for section, field in Params.model_fields.items():
        model = _models(field.annotation)[0]
        parts.append(f"## {section}\n\n{_described(model)}{_table(model, params.get(section, {}))}")
        for heading, inner in _within(section, model, listed):
            parts.append(f"### {heading}\n\n{_described(inner)}{_table(inner, {})}")
    return "\n".join(parts)


def _table(model: type[BaseModel], params: dict[str, Any]) -> str:
    lines = [
        f"| `{key}` | {_type(field)} | {_default(field, key, params)} | {_cell(field.description or '')} |"
        for key, field in _rows(model)
    ]
    return "\n".join(["| knob | type | default | |", "|---|---|---|---|", *lines, ""])


def _rows(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Knobs of a model in their order, those of a model within it by dotted keys."""
    for name, field in model.model_fields.items():
        if inner := _flat(field):
            yield from _rows(inner, f"{above}{name}.")
        elif name != "kind" or field.description:  # the heading says of which kind the knobs are
            yield f"{above}{name}", field


def _within(above: str, model: type[BaseModel], listed: set[type]) -> Iterator[tuple[str, type[Strict]]]:
    """Heading and model of what a field holds by name, in a list or by choice; each model once."""
    for name, field in model.model_fields.items():
        if inner := _flat(field):
            yield from _within(f"{above}.{name}", inner, listed)
            continue
        key = f"{above}.{name}.NAME" if get_origin(field.annotation) is dict else f"{above}.{name}"
        choices = _models(field.annotation)
        for choice in choices:
            if choice not in listed:
                listed.add(choice)
                yield (f"{key}, {_tag(choice)}" if len(choices) > 1 else key), choice
                yield from _within(key, choice, listed)


def _flat(field: FieldInfo) -> type[Strict] | None:
    """The one model that a field always holds."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Strict) else None


def _models(kind: Any) -> list[type[Strict]]:
    """The models in a type, in their order."""
    if isinstance(kind, type) and issubclass(kind, Strict):
        return [kind]
    return [model for part in get_args(kind) for model in _models(part)]


def _tag(model: type[BaseModel]) -> str:
    """What tells a model from the others of a choice: its kind, else its key."""
    kind = model.model_fields.get("kind")
    return f"kind: {get_args(kind.annotation)[0]}" if kind else next(iter(model.model_fields))


def _described(model: type[BaseModel]) -> str:
    """The class' docstring, its indented lines as a list."""
    lines = inspect.cleandoc(model.__doc__ or "").split("\n")
    return "\n".join(re.sub(r"^ +(\S+) +", r"- `\1` ", line) for line in lines) + "\n\n"


def _type(field: FieldInfo) -> str:
    return _cell(_spelled(field.annotation) + _bounds(field.metadata))


def _bounds(notes: Iterable[Any]) -> str:
    """The limits among a type's annotations, such as ` ≥ 1`."""
    limits = ((sign, getattr(note, name, None)) for note in notes for name, sign in _BOUNDS.items())
    return ",".join(f" {sign} {limit}" for sign, limit in limits if limit is not None)


def _spelled(kind: Any) -> str:
    """A type in words."""
    arguments = get_args(kind)
    match get_origin(kind):
        case origin if origin is Annotated:
            return _spelled(arguments[0]) + _bounds(arguments[1:])
        case origin if origin is Literal:
            return ", ".join(f"`{option}`" for option in arguments)
        case origin if origin in (Union, UnionType):
            return " or ".join(dict.fromkeys(_spelled(part) for part in arguments))
        case origin if origin is list:
            return f"list of {_spelled(arguments[0])}"
        case origin if origin is dict:
            return f"{{{_spelled(arguments[0])}: {_spelled(arguments[1])}}}"
    if isinstance(kind, type) and issubclass(kind, Strict):
        return "mapping"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}
    return (names | {Any: "anything"})[kind]


def _default(field: FieldInfo, key: str, params: dict[str, Any]) -> str:
    value: Any = params
    for part in key.split("."):
        value = value.get(part, PydanticUndefined) if isinstance(value, dict) else PydanticUndefined
    if value is not PydanticUndefined:
        return "**as there**" if _models(field.annotation) else f"**{_written(value)}**"
    value = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else _written(value)


def _written(value: Any) -> str:
    """A value as YAML has it."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case "":
            return '""'
        case list():
            return _cell(f"[{', '.join(map(_written, value))}]")
        case dict():
            return _cell(f"{{{', '.join(f'{key}: {_written(item)}' for key, item in value.items())}}}")
    return _cell(str(value))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    if len(sys.argv) > 1:
        raise UserError("params_reference: takes no arguments")
    PAGE.write_text(reference(read_mapping(PARAMS)), encoding="utf-8")


if __name__ == "__main__":
    guarded(main)
