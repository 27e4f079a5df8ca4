"""Knobs of the contrastive loss, read without torch."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from slimtower.common.settings import Strict


class LossParams(Strict):
    """Which terms the loss of a batch has, and over which dimensions."""

    both_directions: bool = False
    """true: half of each query over documents, half of each positive over queries."""
    dims: list[Annotated[int, Field(ge=1)]] = Field(default=[])
    """First dimensions trained along, for an index of that index.dim (Matryoshka), e.g. [64, 128]."""
    hard_negatives: Literal["none", "softmax", "margin", "both"] = "softmax"
    """Where mined negatives count. softmax: among a query's documents; margin: in a margin loss of their own; both;
    none: nowhere.
    """
    margin: float = Field(default=0.0, ge=0)
    """Similarity by which a query's positive must beat its mined negative in the margin loss."""
    margin_weight: float = Field(default=1.0, gt=0)
    """Weight of the margin loss."""

    @field_validator("dims")
    @classmethod
    def _once_each(cls, dims: list[int]) -> list[int]:
        if len(set(dims)) < len(dims):
            raise ValueError("names a dimension twice; name each once")
        return dims
