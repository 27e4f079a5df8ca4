"""What every kind of dual encoder that is trained contrastively has as knobs."""

from abc import ABC
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.teach.kinds.on_triplets import OnTriplets
from steps.teach.loss_params import LossParams
from steps.teach.round_params import RoundParams


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
