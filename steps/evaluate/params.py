"""Section `evaluate` of params.yaml."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from steps.core.measures import NDCG, parse_measure
from steps.core.params import Name, Strict

Faster = Literal["if_no_worse", "unless_worse"]
Perturbation = Literal["typos", "word_order", "prefix"]
ANSWER = re.compile(r"Answer@([1-9]\d*)")
REL, SAT = "AUC-REL", "AUC-SAT"


class EvaluateParams(Strict):
    """How quality, retention and speed are measured, and what the chosen student may take."""

    budget_ms: float = Field(ge=0)
    faster_student: Faster
    earlier_towers: bool
    fused: bool
    rerankers: list[Name]
    rerank_depth: int = Field(ge=1)
    splits: list[Literal["dev", "test"]] = Field(min_length=1)
    measures: list[str]
    min_relevance: dict[str, Annotated[int, Field(ge=1)]]
    ignore_identical_ids: bool
    as_one: list[str]
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

    @property
    def by_query(self) -> list[str]:
        """Those of `measures` that have a value for each query."""
        return [name for name in self.measures if name not in (REL, SAT)]

    @field_validator("measures")
    @classmethod
    def _are_measures(cls, names: list[str]) -> list[str]:
        """By the names that ir-measures itself gives them, nDCG@10 first: it decides."""
        return list(dict.fromkeys([NDCG, *map(_measure, names)]))

    @model_validator(mode="after")
    def _hits_are_enough(self) -> Self:
        for name in self.by_query:
            answer = ANSWER.fullmatch(name)
            depth = int(answer[1]) if answer else parse_measure(name).params.get("cutoff", 0)
            if depth > self.k:
                raise ValueError(f"measures: {name} looks at more hits than k ({self.k}); raise k")
        return self

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


def _measure(name: str) -> str:
    if name in (REL, SAT) or ANSWER.fullmatch(name):
        return name
    try:
        return str(parse_measure(name))
    except ValueError as error:
        raise ValueError(f"{error}; and Answer@k, {REL}, {SAT}") from None
