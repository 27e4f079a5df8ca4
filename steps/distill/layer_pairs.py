"""Which layers of the teacher and of the student are paired at a step (LEAD, Sec. 3.3.2 and 4.4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slimtower.common.errors import UserError
from steps.training.distributed import broadcast

Selection = Literal["random", "weighted", "last", "skip"]
Losses = Callable[[Sequence[int]], Tensor]  # layers -> each one's own loss over the batch at hand, (layers,)

LAYER_TEMPERATURE = 10.0  # divides each layer's own loss in the weights of layers
REDRAW_STEPS = 10  # after which layers are drawn anew
_MIN_CHANCE = 1e-300  # of a layer's probability: as many as are paired must be able to be drawn


@dataclass(frozen=True)
class Pairs:
    """Layers of either model, numbered from 0 and in their order: the first is paired with the first."""

    teacher: tuple[int, ...]
    student: tuple[int, ...]


def candidate_layers(count: int, selection: Selection, depth: int, student_depth: int) -> list[int]:
    """The teacher's layers, numbered from 0, of which `count` may be paired; UserError where either has too few."""
    if count > student_depth:
        raise UserError(
            f"distill.student: layer_distillation pairs {count} layers, but the student has {student_depth};"
            " lower `layers`"
        )
    chosen = list(range(depth))
    if selection == "last":
        chosen = chosen[-count:]
    elif selection == "skip":
        chosen = chosen[: 2 * count : 2]
    if len(chosen) < count:
        every = "every second of " if selection == "skip" else ""
        raise UserError(
            f"distill.student: layer_distillation pairs {count} layers, but {every}the teacher's {depth} are"
            f" {len(chosen)}; lower `layers`"
        )
    return chosen


class LayerPairs(nn.Module):
    """The pairs at hand, and what brings the student's states to the width of the teacher's.

    Both are part of a checkpoint: pairs drawn by the teacher's losses of a batch that is gone cannot be drawn again.
    """

    def __init__(
        self,
        count: int,
        selection: Selection,
        candidates: Sequence[int],
        depth: int,
        seed: int,
        maps: nn.Module | None = None,
    ) -> None:
        """`count` pairs of the teacher's layers `candidates` and the student's `depth`. `maps`: see `maps_between`."""
        super().__init__()
        self.count, self.selection, self.seed, self.maps = count, selection, seed, maps
        self.candidates, self.depth = list(candidates), depth
        self.teacher: Tensor
        self.student: Tensor
        self.draw: Tensor
        for name in ("teacher", "student"):
            self.register_buffer(name, torch.zeros(count, dtype=torch.int64))
        self.register_buffer("draw", torch.tensor(-1))

    def at(self, step: int, losses: Losses) -> Pairs:
        """The pairs of a step, from 1; drawn anew when their time has come. `losses` is asked where they weigh."""
        draw = max(0, step - 1) // REDRAW_STEPS
        if draw != int(self.draw):
            pairs = self._draw_pairs(draw, losses)
            self.teacher.copy_(torch.tensor(pairs.teacher))
            self.student.copy_(torch.tensor(pairs.student))
            self.draw.fill_(draw)
        return Pairs(tuple(self.teacher.tolist()), tuple(self.student.tolist()))

    def _draw_pairs(self, draw: int, losses: Losses) -> Pairs:
        count, student = self.count, np.arange(self.depth)
        if self.selection in ("last", "skip"):  # as many candidates as are paired
            return Pairs(tuple(self.candidates), tuple(student[-count:].tolist()))
        chances = None
        if self.selection == "weighted":
            weights = layer_weights(losses(self.candidates).double())
            chances = np.array(broadcast(weights.tolist())) + _MIN_CHANCE
            chances /= chances.sum()
        theirs, ours = (np.random.default_rng((self.seed, 6, side, draw)) for side in (0, 1))
        teacher_layers = theirs.choice(self.candidates, count, replace=False, p=chances)
        student_layers = ours.choice(student, count, replace=False)
        return Pairs(tuple(sorted(teacher_layers.tolist())), tuple(sorted(student_layers.tolist())))

    def mapped(self, states: Tensor, layers: Sequence[int]) -> Tensor:
        """The student's states `(n, k, width)` of these layers in the teacher's width."""
        if isinstance(self.maps, nn.ModuleList):
            parts = [self.maps[layer](states[:, at]) for at, layer in enumerate(layers)]
            return torch.stack(parts, dim=1)
        return states if self.maps is None else self.maps(states)


class Projection(nn.Module):
    """A fixed matrix; no checkpoint needs it."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix: Tensor
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        return states @ self.matrix.to(states.dtype)


def maps_between(width: int, stored: int, projection: Tensor | None, depth: int) -> nn.Module | None:
    """What brings a student's states of `width` to the `stored` width of the teacher's; None if they have it.

    The teacher's own `projection` if that takes this width, else a linear map for each layer, which trains.
    """
    if projection is not None and len(projection) == width:
        return Projection(projection)
    if width == stored and projection is None:
        return None
    return nn.ModuleList([nn.Linear(width, stored, bias=False) for _ in range(depth)])


def layer_weights(losses: Tensor) -> Tensor:
    """`softmax(-losses / LAYER_TEMPERATURE)` over the last dimension (LEAD, Eq. 7)."""
    return functional.softmax(-losses / LAYER_TEMPERATURE, dim=-1)
