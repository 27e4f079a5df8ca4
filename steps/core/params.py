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
    names = _read_knob(path, "distill", "students")
    if not isinstance(names, list) or not names:
        raise UserError(f"{path}: distill.students is {shorten(names)}; give a list of names in distill.student")
    return [checked_name("distill.students", str(name)) for name in names]


def load_rankers(path: Path = PARAMS) -> list[str]:
    """Names in rank.rankers: the rankers whose scores a run mines from."""
    names = _read_knob(path, "rank", "rankers")
    if not isinstance(names, list):
        raise UserError(f"{path}: rank.rankers is {shorten(names)}; give a list of names in rank.ranker, [] for none")
    return [checked_name("rank.rankers", str(name)) for name in names]


def load_index_teacher(path: Path = PARAMS) -> str:
    """Name in teach.index: the teacher whose document vectors are the index and whose query vectors students learn."""
    name = _read_knob(path, "teach", "index")
    if not isinstance(name, str):
        raise UserError(f"{path}: teach.index is {shorten(name)}; give a name in teach.teachers")
    return checked_name("teach.index", name)


def load_ignore_identical_ids(path: Path = PARAMS) -> bool:
    """evaluate.ignore_identical_ids: whether a query's hit of its own id counts nowhere."""
    value = _read_knob(path, "evaluate", "ignore_identical_ids", default=False)
    if not isinstance(value, bool):
        raise UserError(f"{path}: evaluate.ignore_identical_ids is {shorten(value)}; give true or false")
    return value


def _read_knob(path: Path, section: str, name: str, default: Any = None) -> Any:
    """A knob that another stage's section holds, unchecked; the default if it is not there."""
    knobs = read_mapping(path).get(section)
    return knobs.get(name, default) if isinstance(knobs, dict) else default
