"""What was asked for, checked before anything slow is loaded."""

from steps.core.errors import UserError
from steps.serving.examples import EXAMPLE
from steps.serving.texts import is_unicode


def check_query(query: str, k: int) -> None:
    """UserError for an empty query, one that is not UTF-8, or for fewer than one hit."""
    if not query.strip():
        raise UserError(f'search: the query is empty; give one, e.g. make search Q="{EXAMPLE}"')
    if not is_unicode(query):  # bytes of the command line that are no UTF-8
        raise UserError("search: the query is not UTF-8; type it in a terminal that is set to UTF-8")
    if k < 1:
        raise UserError(f"search: k is {k}; ask for at least 1 hit")
