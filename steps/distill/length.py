"""How long a training goes, and how its learning rate follows: a count of steps, or until it has converged."""

import math
from itertools import pairwise
from typing import Protocol

from steps.distill.checkpoints import Done
from steps.distill.params import Convergence

GROWTH = 1.25  # of the steps from one look at the held-out texts to the next
DECAY = 0.25  # share of all steps in which the learning rate goes down to zero
HALVINGS = 4  # of the first look that counts: earlier ones, for the clock alone
VALIDATIONS = 8  # over a training of a fixed length


class Length(Protocol):
    """When a training looks at its held-out texts, and when it ends. Steps count from 1."""

    @property
    def steps(self) -> int | None:
        """All steps; None as long as nobody knows."""

    def factor(self, step: int) -> float:
        """What multiplies the learning rate once `step` steps are done: above 0 while there is one to go."""

    def looks(self, step: int) -> bool:
        """Whether the held-out texts are read after this step; after the last one they are anyway."""

    def saw(self, step: int, quality: float, seconds: float) -> None:
        """Take note of the quality on held-out texts after a step, and of the seconds gone.

        0 is the teacher's mean vector for every text, 1 the teacher: cosines lie close together where a teacher's
        vectors do.
        """


class Counted:
    """A given number of steps; the learning rate rises over the warm-up and falls in a line over the rest."""

    def __init__(self, steps: int, warmup_ratio: float) -> None:
        """`warmup_ratio` is the share of the steps that warms up."""
        self._steps, self._warmup = steps, max(1, round(steps * warmup_ratio))

    @property
    def steps(self) -> int:
        """All steps."""
        return self._steps

    def factor(self, step: int) -> float:
        """Up to 1, then down to 0 after the last step."""
        return min((step + 1) / self._warmup, (self._steps - step) / max(1, self._steps - self._warmup + 1), 1.0)

    def looks(self, step: int) -> bool:
        """A few times, evenly."""
        return step % max(1, self._steps // VALIDATIONS) == 0 and step != self._steps

    def saw(self, step: int, quality: float, seconds: float) -> None:
        """Changes nothing."""


class UntilConverged:
    """As many steps as help: the rate stays up while the quality on held-out texts rises, then goes down in a line.

    Looks lie a quarter more steps apart each time, so that a gain means the same early and late: what a quarter more
    training brings. The rate starts to fall at the second look in a row that gained less than `min_gain`, or where
    going on to the next look would pass a ceiling. Looks before `_first` are for the clock alone: where steps are slow,
    minutes end the training before the fewest steps. Texts that were never seen teach more than texts seen again, so
    the fewest are a pass over all. `done` remembers what was seen: a training that is continued goes
    on as it would have.
    """

    def __init__(self, limits: Convergence, warmup_ratio: float, done: Done, steps_of_epoch: int = 0) -> None:
        """`warmup_ratio` is the share of the fewest steps that warms up; these are at least a pass over the texts."""
        self._limits, self._done = limits, done
        self._fewest = max(limits.min_steps, min(steps_of_epoch, limits.max_steps))
        self._warmup = max(1, round(self._fewest * warmup_ratio))

    @property
    def steps(self) -> int | None:
        """All steps, once the rate has started to fall."""
        start = self._done.falls_from
        return start + max(1, round(start * DECAY / (1 - DECAY))) if start else None

    def factor(self, step: int) -> float:
        """Up to 1 over the warm-up, 1 until it has converged, then down to 0 after the last step."""
        rises = min((step + 1) / self._warmup, 1.0)
        start, steps = self._done.falls_from, self.steps
        return rises if steps is None else min(rises, max(0.0, (steps - step) / (steps - start)))

    @property
    def _first(self) -> int:
        """Early enough that a third look can end it after the fewest steps."""
        return max(1, math.ceil(self._fewest * (1 - DECAY) / GROWTH**2))

    def looks(self, step: int) -> bool:
        """At each doubling up to `_first`, then at each quarter more."""
        return self.steps is None and step >= self._after(int(self._done.seen[-1][0]) if self._done.seen else 0)

    def _after(self, step: int) -> int:
        """The look that follows the one after `step` steps; 0 = the first one."""
        if step >= self._first:
            return max(step + 1, math.ceil(step * GROWTH))
        early = (math.ceil(self._first / 2**power) for power in range(HALVINGS, -1, -1))
        return next(each for each in early if each > step)

    def saw(self, step: int, quality: float, seconds: float) -> None:
        """Decide whether the rate starts to fall."""
        seen, limits = self._done.seen, self._limits
        if self.steps is not None:
            return
        seen.append([float(step), quality])
        counted = [quality for at, quality in seen if at >= self._first]
        gains = [later - earlier for earlier, later in pairwise(counted)]
        converged = len(gains) >= 2 and max(gains[-2:]) < limits.min_gain
        after = self._after(step)
        many = after > limits.max_steps * (1 - DECAY)
        late = seconds * after / step > 60 * limits.max_minutes * (1 - DECAY)
        if converged or many or late:
            self._done.falls_from, self._done.rising = step, not converged
            self._done.by_clock = late and not (converged or many)
