"""What every kind of teacher that is trained on mined triplets has as knobs."""

from abc import ABC
from typing import Annotated, Literal

from pydantic import Field, field_validator

from steps.teach.kinds.base import Teacher

SOURCES = ("click_one_hop", "click_multi_hop", "judged", "relevance_one_hop", "relevance_multi_hop", "given")
"""Of mined triplets."""


class OnTriplets(Teacher, ABC):
    """A model trained on queries with a document to bring near and one to push away."""

    base: str = Field(min_length=1)
    epochs: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    dropout: float = Field(ge=0, lt=1)
    temperature: float = Field(gt=0)
    max_query_length: int = Field(ge=4)
    max_document_length: int = Field(ge=8)
    max_triplets: int = Field(ge=0)
    source_weights: dict[str, Annotated[float, Field(ge=0)]]
    checkpoint_steps: int = Field(ge=1)
    dev_queries: int = Field(ge=0)
    dev_documents: int = Field(ge=0)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    @field_validator("source_weights")
    @classmethod
    def _names_sources(cls, weights: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(weights.keys() - set(SOURCES)):
            raise ValueError(f"no source of triplets is named {', '.join(unknown)}; they are {', '.join(SOURCES)}")
        return weights
