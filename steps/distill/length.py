"""How long a training goes, and how its learning rate follows: a count of steps, or until it has converged."""

import math
from abc import ABC, abstractmethod
from itertools import pairwise

from steps.distill.checkpoints import Done
from steps.distill.params import Convergence

GROWTH = 1.25  # of the steps from one look at the held-out texts to the next
DECAY = 0.25  # share of all steps in which the learning rate goes down to zero
VALIDATIONS = 8  # over a training of a fixed length


class Length(ABC):
    """When a training looks at its held-out texts, and when it ends. Steps count from 1."""

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """All steps; None as long as nobody knows."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """What multiplies the learning rate once `step` steps are done: above 0 while there is one to go."""

    @abstractmethod
    def should_validate(self, step: int) -> bool:
        """Whether the held-out texts are read after this step; after the last one they are anyway."""

    def record(self, step: int, quality: float) -> None:  # noqa: B027  # a count follows from nothing
        """Take note of the quality on held-out texts: 0 is the teacher's mean vector for every text, 1 the teacher."""


class Counted(Length):
    """A given number of steps; the learning rate rises over the warm-up and falls in a line over the rest."""

    def __init__(self, steps: int, warmup_ratio: float) -> None:
        self._steps, self._warmup = steps, max(1, round(steps * warmup_ratio))

    @property
    def steps(self) -> int:
        return self._steps

    def factor(self, step: int) -> float:
        return min((step + 1) / self._warmup, (self._steps - step) / max(1, self._steps - self._warmup + 1), 1.0)

    def should_validate(self, step: int) -> bool:
        return step % max(1, self._steps // VALIDATIONS) == 0 and step != self._steps


class UntilConverged(Length):
    """As many steps as help: the rate stays up while the quality on held-out texts rises, then goes down in a line.

    Looks lie a quarter more steps apart each time, so that a gain means the same early and late. The rate starts to
    fall at the second look in a row that gained less than `min_gain`, if an epoch will then be done; or if going on to
    the next look would pass the ceiling. Only steps count, never time. `done` has what was seen before a kill.
    """

    def __init__(self, limits: Convergence, warmup_ratio: float, done: Done, epoch: int) -> None:
        """`warmup_ratio` is the share of `min_steps` that warms up; `epoch`: steps to be made at least, or 0."""
        self._limits, self._done = limits, done
        self._warmup = max(1, round(limits.min_steps * warmup_ratio))
        self._ceiling = math.ceil(limits.max_steps * (1 - DECAY))
        fewest = max(limits.min_steps, min(epoch, limits.max_steps)) * (1 - DECAY)
        rounds = max(2, int(math.log(fewest * GROWTH**2 / (limits.min_steps * (1 - DECAY)), GROWTH) + 1e-9))
        self._min_step, self._first = math.ceil(fewest), max(1, math.ceil(fewest / GROWTH**rounds))

    @property
    def steps(self) -> int | None:
        start = self._done.falls_from
        return min(start + max(1, round(start * DECAY / (1 - DECAY))), self._limits.max_steps) if start else None

    def factor(self, step: int) -> float:
        rises = min((step + 1) / self._warmup, 1.0)
        start, steps = self._done.falls_from, self.steps
        return rises if steps is None else min(rises, max(0.0, (steps - step) / (steps - start)))

    def should_validate(self, step: int) -> bool:
        return self.steps is None and step >= self._after(int(self._done.seen[-1][0]) if self._done.seen else 0)

    def _after(self, step: int) -> int:
        """The look that follows the one after `step` steps; 0 = the first one."""
        if step >= self._first:
            following = max(step + 1, math.ceil(step * GROWTH))
            return self._min_step if step < self._min_step and following > self._ceiling else following
        return self._first

    def record(self, step: int, quality: float) -> None:
        seen = self._done.seen
        if self.steps is not None:
            return
        seen.append([float(step), quality])
        gains = [later - earlier for (_, earlier), (_, later) in pairwise(seen)]
        flat = len(gains) >= 2 and max(gains[-2:]) < self._limits.min_gain
        if (flat and step >= self._min_step) or self._after(step) > self._ceiling:
            self._done.falls_from, self._done.rising = step, not flat
