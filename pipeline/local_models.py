"""models.json: digests of the model folders that params.yaml names, by stage, so that DVC sees when one changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.params import OWN_TEACHER, Params
from steps.core.files import write_json
from steps.core.fingerprints import folder_digest

STAGES = ("candidates", "mine", "rank", "teach", "generate", "distill")
_KNOBS = {"base", "adapter", "model", "document_model", "judge", "planner_model"}


def write_models(params: Params, path: Path) -> None:
    """Write the digests; models of the hub, whose commit is in their name, and those of this run are left out."""
    folders = {stage: sorted(set(_folders(getattr(params, stage)))) for stage in STAGES}
    write_json(path, {stage: {str(each): folder_digest(each) for each in found} for stage, found in folders.items()})


def _folders(knobs: Any) -> Iterator[Path]:
    """The folders here that knobs named as a model name, however deep they lie."""
    if isinstance(knobs, BaseModel):
        knobs = {name: getattr(knobs, name) for name in type(knobs).model_fields}
    if not isinstance(knobs, dict):
        for each in knobs if isinstance(knobs, list) else []:
            yield from _folders(each)
        return
    for name, value in knobs.items():
        if not isinstance(value, str):
            yield from _folders(value)
        elif name in _KNOBS and value and not OWN_TEACHER.match(value) and Path(value).is_dir():
            yield Path(value)
