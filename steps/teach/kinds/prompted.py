"""What every kind of teacher that reads texts behind prompts has as knobs."""

from slimtower.common.settings import Strict


class Prompted(Strict):
    """Text in front of texts, which is saved with the teacher: all that it reads and all that it trains on have it."""

    query_prompt: str | None = None
    """Text in front of each query, such as "query: " for E5; null = as the base was saved, "" = none."""
    document_prompt: str | None = None
    """Text in front of each document, such as "passage: " for E5; null = as the base was saved, "" = none."""
