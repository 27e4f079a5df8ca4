"""AdamW that loses no small update of weights in bf16 or fp16."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class MasterAdamW(torch.optim.AdamW):
    """AdamW on fp32 copies of narrower weights (Micikevicius et al., "Mixed Precision Training", 2018, Sec. 3.1).

    bf16 keeps 8 bits: an update below 1/512 of a weight, such as every one at usual learning rates, would be rounded
    away. Weights in fp32 are updated themselves.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float) -> None:
        """`groups` as torch has them, of `params`, a list, and their `weight_decay`."""
        self.weights: list[nn.Parameter] = [weight for group in groups for weight in group["params"]]
        self.masters = [
            weight if weight.dtype == torch.float32 else weight.detach().float().requires_grad_()
            for weight in self.weights
        ]
        copies = iter(self.masters)
        super().__init__([{**group, "params": [next(copies) for _ in group["params"]]} for group in groups], lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the copies by the weights' gradients, and the weights from the copies."""
        for weight, master in self._weight_copies():
            master.grad = None if weight.grad is None else weight.grad.float()
        value = super().step(closure)
        for weight, master in self._weight_copies():
            weight.copy_(master)
            master.grad = None
        return value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the weights' gradients."""
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and copies."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self._weight_copies()]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moments and copies of a run that was killed."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        for (_, master), saved in zip(self._weight_copies(), state_dict["masters"], strict=True):
            master.copy_(saved)

    def _weight_copies(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        return [(weight, copy) for weight, copy in zip(self.weights, self.masters, strict=True) if weight is not copy]
