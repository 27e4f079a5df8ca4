"""A run that remembers losses, and a training that is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from transformers import TrainerCallback

from steps.core.tracking import NullRun


class Recorder(NullRun):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def metrics(self, values: Any, step: int | None = None) -> None:
        if "loss" in values and step is not None:
            self.losses[step] = values["loss"]


@contextmanager
def killed_at(step: int, training: Any) -> Iterator[None]:
    """A training in it, by a module that logs with its LossLog, is interrupted at the end of a step; it must be."""

    class Killer(training.LossLog, TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == step:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "LossLog", Killer)
        yield
