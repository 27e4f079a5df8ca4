"""What a run prints while DVC runs its stages: which stage starts, of how many, and about how long the rest takes."""

import re
import time
from collections.abc import Callable, Mapping

from pipeline.forecast import in_words

_STAGE = re.compile(r"(Running stage|Stage) '([^']+)'(.*)")
_DVC_SAYS = re.compile(  # of its own files, after each stage; the stages say what they did
    r"\s*$|> |Updating lock file |Generating lock file |Use `dvc push`|To track the changes with git|\tgit add "
    r"|To enable auto staging|\tdvc config core\.autostage|Data and pipelines are up to date\.$"
)
_PRIOR = 60.0  # seconds of the forecast that count as measured exactly: one short stage says little of the machine


class Progress:
    """The stages of a run, what they were expected to take, and what those that ended took."""

    def __init__(self, total: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        """`total` stages have to run or to be restored; 0 where only some are wanted."""
        self.total, self.expected = total, dict[str, float]()
        self.started = 0  # stages
        self._seen: set[str] = set()  # of which DVC spoke
        self._forecast = self._measured = 0.0  # seconds of the stages that ran and ended
        self._took: dict[str, float] = {}
        self._running: tuple[str, float] | None = None
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Since the run started."""
        return self._clock() - self._start

    def expect(self, seconds: Mapping[str, float], total: int) -> None:
        """Set the forecast of each stage that is still to run, and how many stages run in all."""
        self.expected, self.total = dict(seconds), total

    def remaining(self) -> float:
        """Seconds that the stages that have not ended take, by the forecast and how it did so far."""
        return self._pace() * sum(self.expected.values())

    def took(self, *, done: bool) -> dict[str, float]:
        """Seconds of each stage that ended; `done`: the one that ran last ended as well."""
        if done:
            self._end_stage()
        return dict(self._took)

    def line(self, text: str) -> str | None:
        """What to print for a line of DVC's; None for what a person need not read."""
        match = _STAGE.match(text)
        if not match:
            return None if _DVC_SAYS.match(text) else text
        verb, stage, rest = match.groups()
        if stage in self._seen:
            return None
        self._seen.add(stage)
        self._end_stage()
        if verb == "Stage" and "cached" not in rest:
            self.expected.pop(stage, None)
            return None
        self.started += 1
        if verb == "Stage":
            self.expected.pop(stage, None)
            return f"Restored stage '{stage}' from DVC's cache ({self._position()})"
        remaining = self.remaining()
        self._running = (stage, self._clock())
        going = f", about {in_words(remaining)} to go" if remaining else ""
        return f"Running stage '{stage}' ({self._position()}; {self.seconds / 60:.1f} minutes gone{going})"

    def _position(self) -> str:
        of = f" of {max(self.total, self.started)}" if self.total else ""
        return f"{self.started}{of}"

    def _pace(self) -> float:
        """Measured seconds over expected ones, of the stages that ended."""
        return (self._measured + _PRIOR) / (self._forecast + _PRIOR)

    def _end_stage(self) -> None:
        """Compare the stage that ran until now with its forecast."""
        if self._running is None:
            return
        stage, started = self._running
        self._running = None
        self._took[stage] = self._clock() - started
        if stage in self.expected:
            self._forecast += self.expected.pop(stage)
            self._measured += self._took[stage]
