"""Knobs of the rounds of hard negatives, read without torch."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from steps.core.names import plain_name
from steps.core.params import Strict


class RoundParams(Strict):
    """How many rounds follow the first training, and which documents a trained tower's search gives as negatives.

    `ranker`: the one of the run that checks them, "" = none. That the run trains it is checked where all sections are
    read.
    """

    more: int = Field(ge=0)
    skip: int = Field(ge=0)
    depth: int = Field(ge=1)
    margin: float = Field(ge=0, lt=1)
    ranker: str
    ranker_margin: float = Field(ge=0, lt=1)

    @field_validator("ranker")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return plain_name(name) if name else name

    @model_validator(mode="after")
    def _leaves_ranks(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip is {self.skip} and depth {self.depth}; negatives rank behind skip, down to depth")
        return self
