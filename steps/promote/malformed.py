"""Documents that others wrote, or an older version: what is missing in one is told, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from slimtower.common.errors import UserError, line


@contextmanager
def reading(document: str, remedy: str) -> Iterator[None]:
    """UserError, which names the document and the remedy, for what is not as its reader expects it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {line(error)[:200]}"
        raise UserError(f"{document}: damaged, or of another version ({reason}); {remedy}") from error
