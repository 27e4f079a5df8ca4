"""Reading params.yaml: each step checks its own section, strictly."""

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from steps.core.errors import UserError
from steps.core.names import plain_name

PARAMS = Path("params.yaml")


class Strict(BaseModel):
    """Base of every section: frozen, without implicit conversion; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Section = TypeVar("Section", bound=Strict)
Model = TypeVar("Model", bound=BaseModel)


def load_section(name: str, model: type[Section], path: Path = PARAMS) -> Section:
    """Read and check one section of params.yaml; UserError names every bad key, its value and the nearest known key."""
    whole = create_model("Whole", __base__=Strict, **{name: (model, ...)})  # type: ignore[call-overload]
    found = {key: value for key, value in read_mapping(path).items() if key == name}
    section: Section = getattr(validated(whole, found, str(path)), name)
    return section


def load_students(path: Path = PARAMS) -> list[str]:
    """Names in distill.students: the students that a run distils, releases and measures."""
    distill = read_mapping(path).get("distill")
    names = distill.get("students") if isinstance(distill, dict) else None
    if not isinstance(names, list) or not names:
        raise UserError(f"{path}: distill.students is {names!r}; give a list of names in distill.student")
    return [checked_name("distill.students", str(name)) for name in names]


def checked_name(key: str, name: str) -> str:
    """A name that becomes a folder; UserError where it could lead out of it."""
    try:
        return plain_name(name)
    except ValueError as error:
        raise UserError(f"{key}: {name!r}: {error}") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; UserError says what is wrong with it."""
    try:
        return parse_mapping(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run this from the project's root folder") from None


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Parse YAML that holds a mapping; UserError names `source`."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{source}: holds no sections; it needs one mapping a stage, as params.yaml has")
    return raw


def validated(model: type[Model], raw: dict[str, Any], source: str) -> Model:
    """Validate a mapping; UserError lists what is wrong in `source`."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        complaints = [_complaint(item, model) for item in error.errors()]
        raise UserError(f"{source}: {'; '.join(complaints)}") from None


def _complaint(item: Any, model: type[BaseModel]) -> str:
    """One pydantic error as one clause: dotted key, value, fix."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _known_keys(model, item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0.0)
        parent = key.rpartition(".")[0]
        hint = f"; did you mean {'.'.join(filter(None, (parent, near[0])))}?" if near else ""
        return f"{key} is unknown{hint}"
    if item["type"] == "missing":
        return f"{key} is missing; add it (the tracked params.yaml shows its default)"
    return f"{key} is {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _known_keys(model: Any, location: tuple[Any, ...]) -> list[str]:
    """Keys of the model at a location; follows nested models, and dictionaries of models."""
    for part in location:
        fields = getattr(model, "model_fields", {})
        annotation = fields[part].annotation if part in fields else model
        inner = [kind for kind in getattr(annotation, "__args__", ()) if hasattr(kind, "model_fields")]
        model = inner[0] if inner else annotation
    return list(getattr(model, "model_fields", {}))
