"""A reader of a source, called with small settings."""

from collections.abc import Callable
from typing import Any

from steps.ingest.rejects import Rejects
from steps.ingest.source_data import SourceData


def read_toy(reader: Callable[..., SourceData], *place: Any, **changes: Any) -> tuple[SourceData, Rejects]:
    """What `reader` makes of its place, and what it rejected; `changes` are settings in place of the small ones."""
    rejects = Rejects()
    settings = {"seed": 3, "max_reject_ratio": 0.5}
    return reader(*place, **settings | changes, rejects=rejects), rejects
