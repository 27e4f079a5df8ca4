"""A reader of a source, called with small settings."""

from collections.abc import Callable
from typing import Any

from steps.ingest.rejects import Rejects
from steps.ingest.source_data import SourceData


def read_toy(
    reader: Callable[..., SourceData], *place: Any, ratio: float = 0.5, **changes: Any
) -> tuple[SourceData, Rejects]:
    """What `reader` makes of its place, and what it rejected; `ratio` of the rows may be defect."""
    rejects = Rejects(ratio)
    return reader(*place, **{"seed": 3} | changes, rejects=rejects), rejects
