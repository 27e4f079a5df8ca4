"""A run that remembers losses."""

from typing import Any

from steps.core.tracking import NullRun


class Recorder(NullRun):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def metrics(self, values: Any, step: int | None = None) -> None:
        if "loss" in values and step is not None:
            self.losses[step] = values["loss"]
