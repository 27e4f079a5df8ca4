"""Knobs of the rounds of hard negatives, read without torch."""

from typing import Self

from pydantic import Field, model_validator

from steps.core.params import Strict


class RoundParams(Strict):
    """How many rounds follow the first training, and which documents a trained tower's search gives as negatives."""

    more: int = Field(ge=0)
    skip: int = Field(ge=0)
    depth: int = Field(ge=1)
    margin: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def _leaves_ranks(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip is {self.skip} and depth {self.depth}; negatives rank behind skip, down to depth")
        return self
