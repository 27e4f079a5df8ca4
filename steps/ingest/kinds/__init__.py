"""Sources of data, one class each. A module here adds its source by being here: see docs/extending.md."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from slimtower.common.plugins import concrete_subclasses
from steps.ingest.source import Source


def kinds() -> list[type[Source]]:
    """Every source that params.yaml can name."""
    classes: list[type[Source]] = concrete_subclasses(__name__, __path__, Source)
    return classes


if TYPE_CHECKING:
    AnySource = Source
else:
    AnySource = Annotated[Union[tuple(kinds())], Field(discriminator="kind")]  # noqa: UP007
