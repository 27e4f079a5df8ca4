"""Settings that a person writes, as params.yaml: read and checked strictly."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model

from slimtower.common.errors import UserError, line
from slimtower.common.masking import redacted, remember
from slimtower.common.names import plain_name

PARAMS = Path("params.yaml")
_QUOTE = "'"
_LOOK_UP = "add it (`python -m pipeline.params_reference` writes docs/params.md, which says what it is)"
_bounded = reprlib.Repr()  # aliases of YAML can make a few lines as large as one likes
_bounded.maxstring = _bounded.maxother = 200


def shorten(value: Any) -> str:
    """A value as a message shows it: without secrets, which could not be told once they are cut, and cut."""
    return _bounded.repr(redacted(value) if isinstance(value, str) else value)


def _variable(name: str) -> str:
    """The name of a variable of the environment, or ""; a secret in its place is masked from now on."""
    longest = max(map(len, name.split("_")))
    if name and (not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or longest > 20):
        remember(name)
        raise ValueError(
            "is no variable's name (a word of one has at most 20 signs); put the secret into a variable of the"
            " environment, and name that one"
        )
    return name


Variable = Annotated[str, AfterValidator(_variable)]
"""Name of a variable of the environment that holds a secret; "" = none."""


class Strict(BaseModel):
    """Base of every section: frozen, finite, without implicit conversion; an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Section = TypeVar("Section", bound=Strict)
Model = TypeVar("Model", bound=BaseModel)


def load_section(name: str, model: type[Section], path: Path = PARAMS) -> Section:
    """Read and check one section of params.yaml; UserError names every bad key, its value and the nearest known key."""
    wrapper = create_model("Whole", __base__=Strict, **{name: (model, ...)})  # type: ignore[call-overload]
    values = {key: value for key, value in read_mapping(path).items() if key == name}
    section: Section = getattr(validated(wrapper, values, str(path)), name)
    return section


def checked_name(key: str, name: str) -> str:
    """A name that becomes a folder; UserError if it could lead out of it."""
    try:
        return plain_name(name)
    except ValueError as error:
        raise UserError(f"{key}: {name!r}: {error}") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; UserError says what is wrong with it."""
    return parse_mapping(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Read a file of settings; UserError when it is missing, no file or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run this from the project's root folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; it must be a file that can be read") from None


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose mappings have each key once: of two the parser would drop the first."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """As it is written: what `<<` merges in comes later, and may be there before."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[no-untyped-call]
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} stands twice in one mapping", problem_mark=key.start_mark
                )
            seen.add((key.tag, key.value))
        return node


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Parse YAML that holds a mapping; UserError names `source`."""
    try:
        raw = _UniqueKeys(text).get_single_data()
    except yaml.MarkedYAMLError as error:  # its own message quotes the line, which may hold a secret
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark else ""
        raise UserError(
            f"{source}: not YAML: {place}{redacted(error.problem or error.context or '')}; fix that"
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # 2025-02-31; a number of thousands of digits
        raise UserError(f"{source}: not YAML: {line(error)[:300]}; fix or quote that value") from None
    except RecursionError:
        raise UserError(f"{source}: not YAML: nested too deeply; a section has no more than a few levels") from None
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
    keys, _ = _followed(model, item["loc"])
    key = ".".join(keys)
    match item["type"]:
        case "extra_forbidden":
            _, owner = _followed(model, item["loc"][:-1])
            near = difflib.get_close_matches(keys[-1], getattr(owner, "model_fields", {}), n=1, cutoff=0.0)
            hint = f"; did you mean {'.'.join([*keys[:-1], near[0]])}?" if near else ""
            return f"{key} is unknown{hint}"
        case "missing":
            return f"{key} is missing; {_LOOK_UP}"
        case "union_tag_not_found":
            return f"{key} has no {item['ctx']['discriminator']}; {_LOOK_UP}"
        case "union_tag_invalid":
            context = item["ctx"]
            tag = f"{key}.{context['discriminator'].strip(_QUOTE)}"
            return f"{tag} is {shorten(context['tag'])}; it may be {context['expected_tags']}"
        case "value_error":
            # wrong between its keys, or in itself
            value = "" if isinstance(item["input"], dict) else f" is {shorten(item['input'])}"
            return f"{key}{value}: {item['ctx']['error']}"
        case _:
            return f"{key} is {shorten(item['input'])}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _followed(model: type[BaseModel], location: Iterable[Any]) -> tuple[list[str], Any]:
    """Keys of the file on the way to a location, without tags of unions, which are no keys; and the type there."""
    kind, members = cast(Any, model), dict[str, Any]()
    keys = []
    for part in location:
        if members:
            kind, members = members.get(part), {}
            continue
        keys.append(str(part))
        notes: list[Any] = []
        if part in (fields := getattr(kind, "model_fields", {})):
            kind, notes = fields[part].annotation, [fields[part], *fields[part].metadata]
        else:
            kind = next(reversed(get_args(kind)), None)  # values of a list or a dictionary
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
        members = _members(kind, notes)
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]  # `Section | None`
    return keys, kind


def _members(kind: Any, notes: Iterable[Any]) -> dict[str, Any]:
    """Members of a union by their tags, if its notes name a key, or a function, that tells them apart."""
    members = get_args(kind) or (kind,)
    for note in notes:
        key = getattr(note, "discriminator", None)
        if isinstance(key, str):
            return {tag: member for member in members for tag in get_args(member.model_fields[key].annotation)}
        if callable(key):
            return {tag.tag: member for member, tag in map(get_args, members)}
    return {}
