"""Section `teach` of params.yaml."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from steps.core.errors import UserError
from steps.core.params import Name, Strict


class DualEncoderParams(Strict):
    """A dual encoder, trained by InfoNCE over in-batch and mined negatives."""

    kind: Literal["dual_encoder"]
    base: str = Field(min_length=1)
    epochs: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    dropout: float = Field(ge=0, lt=1)
    temperature: float = Field(gt=0)
    max_query_length: int = Field(ge=4)
    max_document_length: int = Field(ge=8)
    max_triplets: int = Field(ge=1)
    checkpoint_steps: int = Field(ge=1)
    dev_queries: int = Field(ge=0)
    dev_documents: int = Field(ge=0)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)


# Another kind of teacher is another class, joined to this one by `|`.
TeacherParams = DualEncoderParams


class TeachParams(Strict):
    """The teachers by name, which of them a run trains, and which of those makes the index."""

    teachers: list[Name] = Field(min_length=1)
    index: Name
    teacher: dict[Name, Annotated[TeacherParams, Field(discriminator="kind")]]

    def described(self, name: str) -> TeacherParams:
        """What `teacher` says of one of them; UserError for a name that it does not have."""
        if name not in self.teacher:
            raise UserError(f"teach.teacher has no {name!r}; it describes {sorted(self.teacher)}")
        return self.teacher[name]

    @model_validator(mode="after")
    def _names_belong_together(self) -> Self:
        if missing := [name for name in self.teachers if name not in self.teacher]:
            raise ValueError(f"teachers names {missing}, but teacher has {sorted(self.teacher)}; describe it there")
        if len(set(self.teachers)) < len(self.teachers):
            raise ValueError(f"teachers names one of {self.teachers} twice; name each once")
        if self.index not in self.teachers:
            raise ValueError(f"index is {self.index!r}, but teachers names only {self.teachers}; add it there")
        return self
