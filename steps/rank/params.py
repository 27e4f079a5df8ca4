"""Section `rank` of params.yaml."""

from typing import Literal, Self

from pydantic import Field, model_validator

from steps.core.errors import UserError
from steps.core.params import Name, Strict, Untrained


class CrossEncoderParams(Strict):
    """A cross encoder: what it starts from, on what it is trained, and what it scores."""

    kind: Literal["cross_encoder"]
    base: Untrained
    loss: Literal["bce", "lambda"]
    positive_weight: Literal["auto"] | float
    negatives: int = Field(ge=1)
    random_negatives: int = Field(ge=0)
    max_triplets: int = Field(ge=0)
    epochs: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    dropout: float = Field(ge=0, lt=1)
    max_length: int = Field(ge=8)
    checkpoint_steps: int = Field(ge=1)
    max_queries: int = Field(ge=0)
    depth: int = Field(ge=1)
    dev_queries: int = Field(ge=0)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _weight_is_positive(self) -> Self:
        if self.positive_weight != "auto" and self.positive_weight <= 0:
            raise ValueError(f"positive_weight {self.positive_weight} must be auto or above 0")
        return self


class RankParams(Strict):
    """The rankers by name, and which of them, if any, a run trains.

    A ranker shares its folder below models/teach with the teachers: that teach.teachers does not have its name as well
    is checked where all sections are read.
    """

    rankers: list[Name]
    ranker: dict[Name, CrossEncoderParams]

    def described(self, name: str) -> CrossEncoderParams:
        """What `ranker` says of one of them; UserError for a name that it does not have."""
        if name not in self.ranker:
            raise UserError(f"rank.ranker has no {name!r}; it describes {sorted(self.ranker)}")
        return self.ranker[name]

    @model_validator(mode="after")
    def _names_belong_together(self) -> Self:
        if len(self.rankers) > 1:
            raise ValueError(f"rankers names {self.rankers}, but triplets are mined from one; name one, or none: []")
        if missing := [name for name in self.rankers if name not in self.ranker]:
            raise ValueError(f"rankers names {missing}, but ranker has {sorted(self.ranker)}; describe it there")
        return self
