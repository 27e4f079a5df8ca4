"""Kinds of teachers, one class each. A module here adds its kind by being here: see docs/extending.md."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from steps.core.plugins import concrete
from steps.teach.kinds.base import Teacher


def kinds() -> list[type[Teacher]]:
    """Every kind of teacher that params.yaml can name."""
    found: list[type[Teacher]] = concrete(__name__, __path__, Teacher)
    return found


if TYPE_CHECKING:
    AnyTeacher = Teacher
else:
    AnyTeacher = Annotated[Union[tuple(kinds())], Field(discriminator="kind")]  # noqa: UP007
