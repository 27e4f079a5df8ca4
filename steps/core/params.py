"""What sections of params.yaml share: names of models and of folders, seeds, and knobs that another stage owns."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from slimtower.common.errors import UserError
from slimtower.common.names import key_name
from slimtower.common.settings import PARAMS, checked_name, read_mapping, shorten

_TRAINED = re.compile(r"(^|/)models/(teach|distill|release)(/|$)")  # outputs of this pipeline
_OF_THIS_RUN = re.compile(r"(\./)*models/(teach|distill|release)(/|$)")


def check_untrained(name: str) -> str:
    """The name of a model; ValueError for what looks like an output of this pipeline, in this run or another."""
    if _TRAINED.search(name):
        raise ValueError(
            "looks like a trained teacher, which would be made of its own judgements; name the weights that training"
            " starts from"
        )
    return name


def _not_of_this_run(name: str) -> str:
    return check_untrained(name) if _OF_THIS_RUN.match(name) else name


Capability = Literal["vectors", "scores", "local", "layers", "pairs", "joint"]
"""What a kind of teacher can do: give a text one vector, so that its documents can be an index; score documents for
texts; run here, and not behind an API; score by each layer; embed pairs; train along with a student.
"""
Name = Annotated[str, AfterValidator(key_name)]  # becomes a folder, which a run replaces
MODEL = object()  # marks a knob that names a model, by a folder or on the hub
ModelName = Annotated[str, MODEL]
Untrained = Annotated[ModelName, Field(min_length=1), AfterValidator(check_untrained)]  # by this pipeline
NotOfThisRun = Annotated[ModelName, Field(min_length=1), AfterValidator(_not_of_this_run)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""What every generator of random numbers takes."""


def load_students(path: Path = PARAMS) -> list[str]:
    """Names in distill.students: the students that a run distils, releases and measures."""
    names: list[str] = _read_knob(path, "distill.students", list, "a list of names in distill.student")
    return names


def load_rankers(path: Path = PARAMS) -> list[str]:
    """Names in rank.rankers: the rankers whose scores a run mines from."""
    names: list[str] = _read_knob(path, "rank.rankers", list, "a list of names in rank.ranker, [] for none")
    return names


def load_index_teacher(path: Path = PARAMS) -> str:
    """Name in teach.index: the teacher whose document vectors are the index and whose query vectors students learn."""
    return str(_read_knob(path, "teach.index", str, "a name in teach.teachers"))


def load_ignore_identical_ids(path: Path = PARAMS) -> bool:
    """evaluate.ignore_identical_ids: whether a query's hit of its own id counts nowhere."""
    return bool(_read_knob(path, "evaluate.ignore_identical_ids", bool, "true or false", default=False))


def nested_value(values: Any, *keys: str) -> Any:
    """What nested mappings have under these keys; None without them."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _read_knob(path: Path, key: str, kind: type, advice: str, default: Any = None) -> Any:
    """A knob that another stage's section holds, its names checked; the default if it is not there."""
    section, _, name = key.partition(".")
    knobs = read_mapping(path).get(section)
    value = knobs.get(name, default) if isinstance(knobs, dict) else default
    if not isinstance(value, kind) or (key == "distill.students" and not value):
        raise UserError(f"{path}: {key} is {shorten(value)}; give {advice}")
    if isinstance(value, list):
        return [checked_name(key, str(item)) for item in value]
    return checked_name(key, value) if isinstance(value, str) else value
