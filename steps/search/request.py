"""What was asked for, checked before anything slow is loaded."""

from steps.core.errors import UserError


def check_query(query: str, k: int) -> None:
    """UserError for an empty query, or for fewer than one hit."""
    if not query.strip():
        raise UserError('search: the query is empty; give one, e.g. make search Q="running total along an axis"')
    if k < 1:
        raise UserError(f"search: k is {k}; ask for at least 1 hit")
