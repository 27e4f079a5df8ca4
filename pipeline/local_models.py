"""models.json: digests of the model folders that params.yaml names, by stage, so that DVC sees when one changes.

A stage depends on its own entry, cells of a matrix on that of all: of a new cell's own `dvc repro` would find none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.params import Params
from slimtower.common.files import folder_digest, write_json
from steps.core.params import MODEL
from steps.encoders.bases import OWN_TEACHER, in_run


def write_models(params: Params, path: Path) -> None:
    """Write the digests; models of the hub, whose commit is in their name, and those of this run are left out."""
    by_stage = {stage: set(_folders(knobs)) for stage, knobs in _in_use(params).items()}
    digests = {folder: folder_digest(folder, hidden=False) for folder in set[Path]().union(*by_stage.values())}
    write_json(
        path, {stage: {str(folder): digests[folder] for folder in folders} for stage, folders in by_stage.items()}
    )


def _in_use(params: Params) -> dict[str, list[BaseModel]]:
    """The knobs of each stage that loads models: of teachers, rankers and students those that a run makes."""
    return {
        "candidates": [params.candidates],
        "mine": [params.mine],
        "rank": [params.rank.described(name) for name in params.rank.rankers],
        "teach": [params.teach.described(name) for name in params.teach.teachers],
        "generate": [params.generate],
        "distill": [params.distill.described(name) for name in params.distill.students],
    }


def _folders(knobs: Any) -> Iterator[Path]:
    """The folders here that knobs name as a model, however deep they lie."""
    if isinstance(knobs, BaseModel):
        for name, field in type(knobs).model_fields.items():
            value = getattr(knobs, name)
            if MODEL not in field.metadata:
                yield from _folders(value)
            elif value and not OWN_TEACHER.match(in_run(value, Path.cwd())) and Path(value).is_dir():
                yield Path(value)
    elif isinstance(knobs, list | dict):
        for item in knobs.values() if isinstance(knobs, dict) else knobs:
            yield from _folders(item)
