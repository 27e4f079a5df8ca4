"""Section `promote` of params.yaml."""

from typing import Literal

from pydantic import Field, field_validator

from steps.core.noninferiority import NonInferiority
from steps.core.params import Strict


class Policy(NonInferiority):
    """When a candidate may replace the champion. Qualities are nDCG@10, between 0 and 1."""

    floors: dict[str, float]
    first_floor: float = Field(ge=0, le=1)
    slice_words: list[int]
    slice_loss: float = Field(ge=0, le=1)
    slice_queries: int = Field(ge=1)
    slices: Literal["warn", "block"]
    max_p50_ms: float = Field(gt=0)
    max_index_bytes: int = Field(gt=0)

    @field_validator("slice_words")
    @classmethod
    def _rises(cls, words: list[int]) -> list[int]:
        if words != sorted(set(words)) or any(count < 1 for count in words):
            raise ValueError("must rise from 1 on: each is the last length, in words, of a slice")
        return words

    @field_validator("floors")
    @classmethod
    def _is_a_quality(cls, floors: dict[str, float]) -> dict[str, float]:
        if any(not 0 <= floor <= 1 for floor in floors.values()):
            raise ValueError("must be between 0 and 1")
        return floors


class PromoteParams(Strict):
    """What is promoted, under which name, and who may hold the lock for how long."""

    name: str = Field(pattern=r"^[\w.-]+$")
    student: str
    golden_hits: int = Field(ge=1)
    lock_wait_s: float = Field(ge=0)
    lock_expires_s: float = Field(ge=1)
    policy: Policy
