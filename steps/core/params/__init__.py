"""params.yaml as typed, checked sections: one file here a stage."""

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from steps.core.errors import UserError
from steps.core.params.distill import DistillParams
from steps.core.params.embed import EmbedParams
from steps.core.params.evaluate import EvaluateParams
from steps.core.params.generate import GenerateParams
from steps.core.params.index import IndexParams
from steps.core.params.ingest import IngestParams
from steps.core.params.mine import MineParams
from steps.core.params.promote import PromoteParams
from steps.core.params.release import ReleaseParams
from steps.core.params.strict import Strict
from steps.core.params.teach import TeachParams


class Params(Strict):
    """The whole of params.yaml."""

    ingest: IngestParams
    mine: MineParams
    teach: TeachParams
    generate: GenerateParams
    embed: EmbedParams
    distill: DistillParams
    index: IndexParams
    release: ReleaseParams
    evaluate: EvaluateParams
    promote: PromoteParams


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml; UserError names every bad key, its value and the nearest known key."""
    return check_params(read_mapping(path), str(path))


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


def check_params(raw: dict[str, Any], source: str) -> Params:
    """Validate a params mapping; UserError lists what is wrong in `source`."""
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        complaints = [_complaint(item, raw) for item in error.errors()]
        raise UserError(f"{source}: {'; '.join(complaints)}") from None


def _complaint(item: Any, raw: Any) -> str:
    """One pydantic error as one clause: dotted key, value, mend."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), _known_keys(item["loc"][:-1]), n=1, cutoff=0.0)
        parent = key.rpartition(".")[0]
        hint = f"; did you mean {'.'.join(filter(None, (parent, near[0])))}?" if near else ""
        return f"{key} is unknown{hint}"
    if item["type"] == "missing":
        return f"{key} is missing; add it (the tracked params.yaml shows its default)"
    return f"{key} is {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """Keys of the section model at a location; follows nested models, and dictionaries of models."""
    model: Any = Params
    for part in location:
        fields = getattr(model, "model_fields", {})
        annotation = fields[part].annotation if part in fields else model
        inner = [kind for kind in getattr(annotation, "__args__", ()) if hasattr(kind, "model_fields")]
        model = inner[0] if inner else annotation
    return list(getattr(model, "model_fields", {}))
