"""Kinds of teachers, one class each. A module here adds its kind by being here: see docs/extending.md."""

from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import Discriminator, Tag

from steps.core.plugins import concrete
from steps.teach.kinds.base import Teacher


def kinds() -> dict[str, type[Teacher]]:
    """Every kind that params.yaml can name, by its name."""
    found = concrete(__name__, __path__, Teacher)
    return {get_args(each.model_fields["kind"].annotation)[0]: each for each in found}


def _kind(value: object) -> object:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


if TYPE_CHECKING:
    AnyTeacher = Teacher
else:
    AnyTeacher = Annotated[  # a union of one is no union, and needs its tag all the same
        Union[tuple(Annotated[each, Tag(name)] for name, each in kinds().items())],  # noqa: UP007
        Discriminator(_kind),
    ]
