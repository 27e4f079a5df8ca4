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

    more: int = Field(default=0, ge=0)
    """Rounds after the first training; 0 = none. In each the trained tower searches the corpus for its training
    queries, and trains on over the same triplets for as many epochs, each with a new negative drawn from what it found
    and is no known positive. Each costs a training, and reading the corpus once.
    """
    skip: int = Field(default=10, ge=0)
    """The best hits, which may be relevant and are left alone."""
    depth: int = Field(default=50, ge=1)
    """The last rank that may be a negative."""
    margin: float = Field(default=0.05, ge=0, lt=1)
    """Share of the positive's score by which a negative's is below it."""
    ranker: str = ""
    """One of rank.rankers that checks each negative before it is taken; "" = none."""
    ranker_margin: float = Field(default=0.5, ge=0, lt=1)
    """Share: its score counts as a probability (sigmoid), and a document is no negative unless its is below the
    positive's by it.
    """

    @field_validator("ranker")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return plain_name(name) if name else name

    @model_validator(mode="after")
    def _leaves_ranks(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip is {self.skip} and depth {self.depth}; negatives rank behind skip, down to depth")
        return self
