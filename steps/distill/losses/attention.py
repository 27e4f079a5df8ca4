"""The loss that compares attention maps, which tie student and teacher to one vocabulary.

| kind | source |
|---|---|
| attention | feature distillation: FD in LEAD, Sec. 4.3.2, after VIRT (Li et al. 2021) |
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from steps.distill.losses.base import Batch, Loss, Outputs, Targets
from steps.distill.providers import Provider, Setting


class Attention(Loss):
    """`mean_{l,h} 1/|q| sum_x ||a^t_lhx - a^s_lhx||^2`: how tokens x of a text look at it, in layer l and head h."""

    takes_teacher: ClassVar[bool] = True
    is_single: ClassVar[bool] = True
    looks_inside: ClassVar[bool] = True
    is_for_bench: ClassVar[bool] = True

    kind: Literal["attention"]
    """The attention maps of the query tower, which runs along; for start: {layers: [...]} alone. Another `teacher`, of
    the same tokens, is for bench alone: it reads the query and no document.
    """

    @model_validator(mode="after")
    def _maps_are_whole(self) -> Self:
        if self.dims:
            raise ValueError("dims are of embeddings, attention compares maps; leave dims out")
        return self

    def provider(self, setting: Setting) -> Provider:
        """Attention maps of both sides."""
        from steps.distill.attention import provide_attention  # seconds: params are read without it

        return provide_attention(setting, self.teacher)

    def complain_of_start(self, start: str) -> str:
        """Maps are compared token by token and head by head."""
        return "" if start == "layers" else "compares maps over the teacher's tokens; use start: {layers: [...]}"

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        """Value of each text, `(n,)`."""
        student, teacher = targets.provided[self.name]
        distances = (teacher - student).square().sum(dim=(3, 4)).mean(dim=(1, 2))
        looking = (teacher.sum(dim=4) > 0).sum(dim=3).amax(dim=(1, 2))
        return distances / torch.clamp(looking, min=1)
