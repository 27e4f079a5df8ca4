"""Knobs of the contrastive loss, read without torch."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from steps.core.params import Strict


class LossParams(Strict):
    """Which terms the loss of a batch has, and over which dimensions."""

    both_directions: bool
    dims: list[Annotated[int, Field(ge=1)]]
    hard_negatives: Literal["none", "softmax", "margin", "both"]
    margin: float = Field(ge=0)
    margin_weight: float = Field(gt=0)

    @field_validator("dims")
    @classmethod
    def _once_each(cls, dims: list[int]) -> list[int]:
        if len(set(dims)) < len(dims):
            raise ValueError("names a dimension twice; name each once")
        return dims
