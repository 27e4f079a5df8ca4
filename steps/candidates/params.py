"""Knobs of the stage `candidates`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Strict, Untrained


class CandidatesParams(Strict):
    """Who searches, with which queries, and how many documents are kept."""

    searchers: list[Literal["bm25", "dense"]]
    queries: Literal["judged", "all"]
    max_queries: int = Field(ge=0)
    dev_queries: int = Field(ge=0)
    depth: int = Field(ge=1)
    base: Untrained
    max_document_length: int = Field(ge=8)
    batch_size: int = Field(ge=1)
    shard_texts: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.searchers)) < len(self.searchers):
            raise ValueError(f"searchers names one of {self.searchers} twice; name each once")
        return self
