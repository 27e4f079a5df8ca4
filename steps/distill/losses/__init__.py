"""Losses of students, one class each. A module here adds its losses by being here: see docs/extending.md."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from slimtower.common.plugins import concrete_subclasses
from steps.distill.losses.base import Loss


def losses() -> list[type[Loss]]:
    """Every loss that params.yaml can name."""
    classes: list[type[Loss]] = concrete_subclasses(__name__, __path__, Loss)
    return classes


if TYPE_CHECKING:
    AnyLoss = Loss
else:
    AnyLoss = Annotated[Union[tuple(losses())], Field(discriminator="kind")]  # noqa: UP007
