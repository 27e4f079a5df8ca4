"""Section `evaluate` of params.yaml."""

from typing import Literal

from pydantic import Field, field_validator

from steps.core.params import Name, Strict


class EvaluateParams(Strict):
    """How quality, retention and speed are measured, and what the chosen student may take."""

    budget_ms: float = Field(ge=0)
    earlier_towers: bool
    rerankers: list[Name]
    rerank_depth: int = Field(ge=1)
    splits: list[Literal["dev", "test"]] = Field(min_length=1)
    k: int = Field(ge=1000)
    run_depth: int = Field(ge=10)
    batch_size: int = Field(ge=1)
    latency_queries: int = Field(ge=10)
    throughput_queries: int = Field(ge=1)
    throughput_batch: int = Field(ge=1)
    bootstrap_samples: int = Field(ge=100)
    examples: int = Field(ge=0)
    seed: int = Field(ge=0)

    @field_validator("splits")
    @classmethod
    def _test_is_measured(cls, splits: list[str]) -> list[str]:
        if "test" not in splits:
            raise ValueError("must hold `test`: retention is defined on it")
        return splits
