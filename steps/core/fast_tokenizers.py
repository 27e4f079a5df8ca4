"""What the tokenizer of a base has to be."""

from typing import Any

from steps.core.errors import UserError


def check_fast(tokenizer: Any, name: str) -> None:
    """UserError unless it is a fast one: training cuts texts by its offsets, and a release is read without Python's."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{name} has no fast tokenizer, which training and release read texts with; take one whose"
            " folder has a tokenizer.json, or save it anew with a PreTrainedTokenizerFast of transformers"
        )
