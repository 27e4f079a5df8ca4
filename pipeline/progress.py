"""How long stages take, and what a run prints while DVC runs them: which one starts, of how many, and the time to go.

A stage takes as long as it took before, here or in the record of the demo, scaled by documents.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, read_json, sha256_text, write_json

RECORD, RECORD_DOCUMENTS = Path("bench/results/demo.json"), 6_000  # of the demo
_STAGE = re.compile(r"(Running stage|Stage) '([^']+)'(.*)")
_DVC_SAYS = re.compile(  # of its own files, after each stage; the stages say what they did
    r"\s*$|> |Updating lock file |Generating lock file |Use `dvc push`|To track the changes with git|\tgit add "
    r"|To enable auto staging|\tdvc config core\.autostage|Data and pipelines are up to date\.$"
)
_PRIOR = 60.0  # seconds of the forecast that count as measured exactly: one short stage says little of the machine


def expected_seconds(stages: Collection[str], documents: int) -> dict[str, float]:
    """About how long each of these stages takes for a corpus of so many documents; {} if one of them is unknown.

    A recipe that was not run here yet has no forecast: nothing tells how its teacher compares with the demo's.
    """
    earlier = _read(_times_file())
    if not earlier and not os.environ.get("SLIMTOWER_RECIPE"):
        recorded = _read(RECORD).get("stage_seconds", {})
        earlier = {stage: {"seconds": seconds, "documents": RECORD_DOCUMENTS} for stage, seconds in recorded.items()}
    if not set(stages) <= set(earlier):
        return {}
    return {stage: earlier[stage]["seconds"] * documents / max(1, earlier[stage]["documents"]) for stage in stages}


def record_seconds(seconds: Mapping[str, float], documents: int) -> None:
    """Keep what stages took, for the next run of this project, or of this recipe, on this machine."""
    times = {stage: {"seconds": round(taken, 1), "documents": documents} for stage, taken in seconds.items()}
    if times:
        write_json(_times_file(), _read(_times_file()) | times)


def in_words(seconds: float) -> str:
    """An estimated time, as a person says it, after "about"."""
    return f"{round(seconds / 60)} minutes" if seconds >= 90 else "a minute" if seconds >= 30 else "half a minute"


def _times_file() -> Path:
    root = Path(os.environ.get("SLIMTOWER_RECIPE", "")).name or str(Path.cwd())
    return cache_root() / "stage_seconds" / f"{sha256_text(root)[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    """A file of ours; {} if it is not there, or somebody damaged it."""
    try:
        content = read_json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}
    except (UserError, OSError, ValueError):
        return {}


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
