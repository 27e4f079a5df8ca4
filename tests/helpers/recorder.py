"""A run that remembers what it is told, and a training that is killed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from steps.tracking.runs import NullRun


class Recorder(NullRun):
    """Keeps every measurement with its step, the tags, and the names of files."""

    def __init__(self) -> None:
        self.history: list[tuple[str, float, int | None]] = []
        self.tags: dict[str, str] = {}
        self.files: list[str] = []

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.history.append((name, float(value), step))

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        for name, value in values.items():
            self.metric(name, value, step)

    def tag(self, name: str, value: str) -> None:
        self.tags[name] = value

    def artifact(self, path: Path) -> None:
        self.files.append(path.name)

    def of(self, name: str) -> list[float]:
        """All values of a measurement."""
        return [value for metric, value, _ in self.history if metric == name]

    @property
    def last(self) -> dict[str, float]:
        """The last value of each."""
        return {name: value for name, value, _ in self.history}

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each step."""
        return {step: value for name, value, step in self.history if name == "loss" and step is not None}


@contextmanager
def killed_at(step: int, training: Any) -> Iterator[None]:
    """A training in it, by a module that logs with its LossLog, is interrupted at the end of a step; it must be."""
    from transformers import TrainerCallback

    class Killer(training.LossLog, TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == step:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "LossLog", Killer)
        yield
