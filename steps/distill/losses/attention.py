"""The loss that compares attention maps, which tie student and teacher to one vocabulary.

| kind | source |
|---|---|
| attention | feature distillation: FD in LEAD, Sec. 4.3.2, after VIRT (Li et al. 2021) |
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from steps.distill.losses.base import Batch, Loss, Need, Outputs, Targets


class Attention(Loss):
    """`mean_{l,h} 1/|q| sum_x ||a^t_lhx - a^s_lhx||^2`: how tokens x of a text look at it, in layer l and head h."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTENTION})

    kind: Literal["attention"]
    """The attention maps of the query tower, which runs along; for start: {layers: [...]} alone."""
    teacher: str = ""
    """"" = the index teacher; another one, of the same tokens, for bench alone: it reads the query and no document."""

    @model_validator(mode="after")
    def _maps_are_whole(self) -> Self:
        if self.dims:
            raise ValueError("dims are of embeddings, attention compares maps; leave dims out")
        return self

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        """Value of each text, `(n,)`."""
        if outputs.attention is None or targets.attention is None:
            raise ValueError("attention maps of both sides are needed")
        distances = (targets.attention - outputs.attention).square().sum(dim=(3, 4)).mean(dim=(1, 2))
        looking = (targets.attention.sum(dim=4) > 0).sum(dim=3).amax(dim=(1, 2))
        return distances / torch.clamp(looking, min=1)
