"""Losses of students, one class each. A module here adds its losses by being here: see docs/extending.md."""

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from steps.distill.losses.base import Loss


def losses() -> list[type[Loss]]:
    """Every loss of the modules of this package that params.yaml can name."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        found += [each for each in members if isinstance(each, type) and issubclass(each, Loss)]
    named = {each for each in found if not inspect.isabstract(each) and each.model_fields["kind"].annotation is not str}
    return sorted(named, key=lambda loss: loss.__name__)


if TYPE_CHECKING:
    AnyLoss = Loss
else:
    AnyLoss = Annotated[Union[tuple(losses())], Field(discriminator="kind")]  # noqa: UP007
