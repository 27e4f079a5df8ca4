"""Kinds of teachers, one class each. A module here adds its kind by being here: see docs/extending.md."""

from typing import TYPE_CHECKING, Annotated, Literal, Union, get_origin

from pydantic import Field

from slimtower.common.plugins import concrete_subclasses
from steps.teach.kinds.base import Teacher


def kinds() -> list[type[Teacher]]:
    """Every kind of teacher that params.yaml can name."""
    classes: list[type[Teacher]] = concrete_subclasses(__name__, __path__, Teacher)
    return [kind for kind in classes if get_origin(kind.model_fields["kind"].annotation) is Literal]


if TYPE_CHECKING:
    AnyTeacher = Teacher
else:
    AnyTeacher = Annotated[Union[tuple(kinds())], Field(discriminator="kind")]  # noqa: UP007
