"""Knobs of the rounds of hard negatives, read without torch."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from slimtower.common.names import plain_name
from slimtower.common.settings import Strict


class RoundParams(Strict):
    """How many rounds follow the first training, and which documents a trained tower's search gives as negatives.

    `ranker`: the one of the run that checks them, "" = none. That the run trains it is checked where all sections are
    read.
    """

    more: int = Field(default=0, ge=0)
    """Rounds after the first training; 0 = none. In each the trained tower searches the corpus for its training
    queries. It then trains on over the same triplets, for as many epochs, each with a new negative from what it found,
    never a known positive. A round costs a training and reading the corpus once.
    """
    skip: int = Field(default=10, ge=0)
    """The best hits, which may be relevant and are left alone."""
    depth: int = Field(default=50, ge=1)
    """The last rank that may be a negative."""
    margin: float = Field(default=0.05, ge=0, lt=1)
    """A negative's score must be below the positive's by this share of it; 0.05: at most 95 % of it."""
    ranker: str = ""
    """One of rank.rankers that checks each negative before it is taken; "" = none."""

    @field_validator("ranker")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return plain_name(name) if name else name

    @model_validator(mode="after")
    def _leaves_ranks(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip is {self.skip} and depth {self.depth}; negatives rank behind skip, down to depth")
        return self
