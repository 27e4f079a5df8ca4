"""Section `promote` of params.yaml."""

from typing import Literal

from pydantic import Field, field_validator

from slimtower.common.settings import Strict
from steps.retrieval.noninferiority import NonInferiority


class Policy(NonInferiority):
    """When a candidate may replace the champion. Qualities are nDCG@10, between 0 and 1."""

    floors: dict[str, float]
    """Least nDCG@10 by data set or slice, always: {api: 0.5, "api/up to 4 words": 0.4}."""
    first_floor: float = Field(ge=0, le=1)
    """Least nDCG@10 on a data set on which there is no champion to compare with, or one that is below this itself."""
    slices: Literal["warn", "block"]
    """What happens where a slice of the report (reports/slices.parquet) surely loses more than the margin: warn, or
    block the promotion. The confidence holds for all these slices together. Slices by length (up to 4 words, 5 to 8,
    9 and more) always block.
    """
    max_p50_ms: float = Field(gt=0)
    """Most milliseconds (p50) of one query on one thread: text to embedding; of a release that fuses with BM25, text to
    hits.
    """
    max_index_bytes: int = Field(default=20_000_000_000, gt=0)
    """Most bytes below index/ and lexical/ of the release."""

    @field_validator("floors")
    @classmethod
    def _is_a_quality(cls, floors: dict[str, float]) -> dict[str, float]:
        if any(not 0 <= floor <= 1 for floor in floors.values()):
            raise ValueError("must be between 0 and 1")
        return floors


class PromoteParams(Strict):
    """What is promoted, under which name, and who may hold the lock for how long."""

    name: str = Field(pattern=r"^[\w.-]+$")
    """Registered model; data sets of different services want different names."""
    student: str
    """A name in distill.students; "" = the evaluation's choice (evaluate.budget_ms) where it is within the budgets of
    the policy, else the best on dev of those that are, which is also offered where the gate refuses the choice.
    """
    lock_expires_s: float = Field(default=600.0, ge=1)
    """Seconds after which a lock counts as left by a process that died; a move takes seconds."""
    policy: Policy
    """When a candidate may replace the champion."""
