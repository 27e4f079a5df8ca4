"""The loss that compares attention maps, which tie student and teacher to one vocabulary.

| kind | source |
|---|---|
| attention | feature distillation: FD in LEAD, Sec. 4.3.2, after VIRT (Li et al. 2021) |
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from steps.distill.losses.base import Batch, Loss, Outputs, Targets
from steps.distill.providers import Provider, Setting


class Attention(Loss):
    """`mean_{l,h} 1/|q| sum_x ||a^t_lhx - a^s_lhx||^2`: how tokens x of a text look at it, in layer l and head h."""

    takes_teacher: ClassVar[bool] = True
    is_single: ClassVar[bool] = True
    looks_inside: ClassVar[bool] = True
    is_for_bench: ClassVar[bool] = True
    undivided: ClassVar[str] = "compares maps"

    kind: Literal["attention"]
    """The attention maps of the query tower, which runs along; for start: {layers: [...]} alone. Another `teacher`, of
    the same tokens, is for bench alone: it reads the query and no document.
    """

    def provider(self, setting: Setting) -> Provider:
        from steps.distill.attention import provide_attention  # seconds: params are read without it

        return provide_attention(setting, self.teacher)

    def complain_of_start(self, start: str) -> str:
        return "" if start == "layers" else "compares maps over the teacher's tokens; use start: {layers: [...]}"

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        student, teacher = targets.provided[self.name]
        distances = (teacher - student).square().sum(dim=(3, 4)).mean(dim=(1, 2))
        looking = (teacher.sum(dim=4) > 0).sum(dim=3).amax(dim=(1, 2))
        return distances / torch.clamp(looking, min=1)
