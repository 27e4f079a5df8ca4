"""Knobs of the stage `candidates`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Untrained


class CandidatesParams(Strict):
    """Who searches, with which queries, and how many documents are kept."""

    searchers: list[Literal["bm25", "dense"]]
    """Who searches for training queries before a teacher is trained: bm25; dense: the embeddings of `base`. [] = none,
    and then only judged irrelevant documents are hard negatives.
    """
    queries: Literal["judged", "all"]
    """judged: training queries with a relevant document; all: the others too, for a ranker (rank)."""
    max_queries: int = Field(default=100_000, ge=0)
    """Queries of those, drawn by seed; 0 = no limit."""
    depth: int = Field(ge=1)
    """Documents kept of each query and searcher."""
    base: Untrained = "all-MiniLM-L6-v2"
    """Of dense: the bundled name, a sentence-transformers folder or a Hugging Face name."""
    batch_size: int = Field(default=64, ge=1)
    """Texts it reads at once."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.searchers)) < len(self.searchers):
            raise ValueError(f"searchers names one of {self.searchers} twice; name each once")
        return self
