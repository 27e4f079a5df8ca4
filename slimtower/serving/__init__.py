"""Answering queries from a release: the query encoder, the index files, the manifest, and what is checked."""

from typing import Any

import slimtower


def __getattr__(name: str) -> Any:
    """What `slimtower` itself offers, which programs once imported from here."""
    if name not in slimtower.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(slimtower, name)
