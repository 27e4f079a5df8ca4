"""Knobs of the stage `score`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Name, Strict


class ScoreParams(Strict):
    """Which teachers score, how many texts with how many documents each, and how many texts at once."""

    teachers: list[Name]
    depth: int = Field(ge=0)
    max_texts: int = Field(ge=0)
    pairs: int = Field(ge=0)
    batch_size: int = Field(ge=1)
    shard_texts: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.teachers)) < len(self.teachers):
            raise ValueError(f"teachers names one of {self.teachers} twice; name each once")
        return self
