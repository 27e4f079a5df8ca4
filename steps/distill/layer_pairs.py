"""Which layers of the teacher and of the student are paired at a step (LEAD, Sec. 3.3.2 and 4.4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.errors import UserError
from steps.distill.losses.layer import LayerDistillation, layer_weights
from steps.training.distributed import broadcast

Losses = Callable[[Sequence[int]], Tensor]  # layers -> each one's own loss over the batch at hand, (layers,)

REDRAW_STEPS = 10  # after which layers are drawn anew
_MIN_CHANCE = 1e-300  # of a layer's probability: as many as are paired must be able to be drawn


@dataclass(frozen=True)
class Pairs:
    """Layers of either model, numbered from 0 and in their order: the first is paired with the first."""

    teacher: tuple[int, ...]
    student: tuple[int, ...]


def candidate_layers(loss: LayerDistillation, depth: int, student_depth: int) -> list[int]:
    """The teacher's layers, numbered from 0, that may ever be paired; UserError where there are too few of either."""
    if loss.layers > student_depth:
        raise UserError(
            f"distill.student: layer_distillation pairs {loss.layers} layers, but the student has {student_depth};"
            " lower `layers`"
        )
    chosen = list(range(depth))
    if loss.selection == "last":
        chosen = chosen[-loss.layers :]
    elif loss.selection == "skip":
        chosen = chosen[: 2 * loss.layers : 2]
    if len(chosen) < loss.layers:
        every = "every second of " if loss.selection == "skip" else ""
        raise UserError(
            f"distill.student: layer_distillation pairs {loss.layers} layers, but {every}the teacher's {depth} are"
            f" {len(chosen)}; lower `layers`"
        )
    return chosen


class LayerPairs(nn.Module):
    """The pairs at hand, and what brings the student's states to the width of the teacher's.

    Both are part of a checkpoint: pairs drawn by the teacher's losses of a batch that is gone cannot be drawn again.
    """

    def __init__(
        self, loss: LayerDistillation, candidates: Sequence[int], depth: int, seed: int, maps: nn.Module | None = None
    ) -> None:
        """`candidates`: the teacher's layers. `depth`: the student's. `maps`: see `maps_between`."""
        super().__init__()
        self.loss, self.candidates, self.depth, self.seed, self.maps = loss, list(candidates), depth, seed, maps
        self.teacher: Tensor
        self.student: Tensor
        self.draw: Tensor
        for name in ("teacher", "student"):
            self.register_buffer(name, torch.zeros(loss.layers, dtype=torch.int64))
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
        count, student = self.loss.layers, np.arange(self.depth)
        if self.loss.selection in ("last", "skip"):  # as many candidates as are paired
            return Pairs(tuple(self.candidates), tuple(student[-count:].tolist()))
        chances = None
        if self.loss.selection == "weighted":
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
    """What brings a student's states of `width` to the `stored` width of the teacher's; None where they have it.

    The teacher's own `projection` where that takes this width, else a linear map for each of the student's `depth`
    layers, which trains and is left behind.
    """
    if projection is not None and len(projection) == width:
        return Projection(projection)
    if width == stored and projection is None:
        return None
    return nn.ModuleList([nn.Linear(width, stored, bias=False) for _ in range(depth)])
