"""What every kind of dual encoder that is trained contrastively has as knobs."""

from abc import ABC
from typing import ClassVar

from steps.teach.kinds.on_triplets import OnTriplets
from steps.teach.loss_params import LossParams
from steps.teach.round_params import RoundParams


class Contrastive(OnTriplets, ABC):
    """A query and a document tower, trained contrastively over in-batch and mined negatives."""

    trains_in_processes: ClassVar[bool] = True

    loss: LossParams = LossParams()
    """The terms of the contrastive loss."""
    rounds: RoundParams = RoundParams()
    """Further rounds, with negatives that the tower itself found."""
