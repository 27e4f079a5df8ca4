"""Knobs of the stage `distill`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from steps.core.params.embed import Part
from steps.core.params.strict import Strict

LossName = Literal["squared_error", "l2", "cosine"]


class Schedule(Strict):
    """How a student is trained; shared by both kinds."""

    loss: LossName
    epochs: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)


class TokenTableParams(Schedule):
    """A static student: one row a token, mean, no transformer."""

    kind: Literal["token_table"]


class LayerSubsetParams(Schedule):
    """A student of some of the teacher's layers; negative numbers count from the last."""

    kind: Literal["layer_subset"]
    layers: list[int] = Field(min_length=1)
    weight_decay: float = Field(ge=0)


StudentParams = Annotated[TokenTableParams | LayerSubsetParams, Field(discriminator="kind")]


class DistillParams(Strict):
    """The students, and what they all share."""

    students: list[str] = Field(min_length=1)
    seed: int
    mixture: dict[Part, Annotated[float, Field(ge=0)]]
    max_length: int = Field(ge=4)
    validation_texts: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    student: dict[str, StudentParams]

    @model_validator(mode="after")
    def _every_student_is_described(self) -> "DistillParams":
        missing = [name for name in self.students if name not in self.student]
        if missing:
            raise ValueError(f"students names {missing} but student describes only {sorted(self.student)}")
        return self
