"""Section `evaluate` of params.yaml."""

import re
from typing import Literal

from pydantic import Field, field_validator

from steps.core.params import Strict
from steps.evaluate.perturbations import Perturbation


class EvaluateParams(Strict):
    """How quality, retention and speed are measured, and what the chosen student may take."""

    budget_ms: float = Field(ge=0)
    earlier_towers: bool
    splits: list[Literal["dev", "test"]] = Field(min_length=1)
    k: int = Field(ge=1000)
    run_depth: int = Field(ge=10)
    batch_size: int = Field(ge=1)
    latency_queries: int = Field(ge=10)
    throughput_queries: int = Field(ge=1)
    throughput_batch: int = Field(ge=1)
    bootstrap_samples: int = Field(ge=100)
    examples: int = Field(ge=0)
    slices: dict[str, str]
    slice_table: str
    perturbations: list[Perturbation]
    perturbed_queries: int = Field(ge=0)
    seed: int = Field(ge=0)

    @field_validator("splits")
    @classmethod
    def _test_is_measured(cls, splits: list[str]) -> list[str]:
        if "test" not in splits:
            raise ValueError("must hold `test`: retention is defined on it")
        return splits

    @field_validator("slices")
    @classmethod
    def _can_be_searched_for(cls, slices: dict[str, str]) -> dict[str, str]:
        for name, pattern in slices.items():
            if not re.fullmatch(r"[\w .-]+", name):
                raise ValueError(f"{name!r}: a name has letters, digits, blanks, dots, dashes and underscores")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{name}: {pattern!r} is no regular expression: {error}") from None
        return slices
