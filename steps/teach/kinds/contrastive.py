"""What every kind of dual encoder that is trained contrastively has as knobs."""

from abc import ABC
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from slimtower.common.names import plain_name
from slimtower.common.settings import Strict
from steps.teach.kinds.on_triplets import OnTriplets


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


class LoraParams(Strict):
    """Low-rank matrices that train in place of a network's own weights, and what they are added to."""

    rank: int = Field(ge=1)
    """Of the low-rank matrices."""
    target_modules: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Modules beside which they stand, such as [q_proj, v_proj], of a BERT [query, value]."""


class Contrastive(OnTriplets, ABC):
    """A query and a document tower, trained contrastively over in-batch and mined negatives."""

    trains_in_processes: ClassVar[bool] = True

    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW: what a step takes off matrices, times the learning rate."""
    lora: LoraParams | None = None
    """null: all weights train. Else low-rank matrices, and what is not the network's own with them: linear maps (`pip
    install peft`).
    """
    gradient_checkpointing: bool = False
    """true: recompute activations; less memory, a third more time."""
    loss: LossParams = LossParams()
    """The terms of the contrastive loss."""
    rounds: RoundParams = RoundParams()
    """Further rounds, with negatives that the tower itself found."""

    @property
    def checking_ranker(self) -> str:
        """That of its rounds."""
        return self.rounds.ranker

    @model_validator(mode="after")
    def _rounds_have_a_use_for_what_they_find(self) -> Self:
        if self.rounds.more and self.loss.hard_negatives == "none":
            raise ValueError("rounds.more: rounds find hard negatives, which loss.hard_negatives: none leaves out")
        return self
