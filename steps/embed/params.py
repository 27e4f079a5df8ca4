"""Knobs of the stage `embed`."""

from typing import Literal

from pydantic import Field

from steps.core.params import Strict
from steps.core.tables import Part


class CheckParams(Strict):
    """How many given vectors of documents are compared with the teacher's, and the cosine that each must have."""

    documents: int = Field(ge=1)
    cosine: float = Field(gt=0, le=1)


class EmbedParams(Strict):
    """Which texts the teacher embeds, and how."""

    parts: list[Part] = Field(min_length=1)
    max_words: int = Field(ge=1)
    max_part_texts: int = Field(ge=0)
    least_texts: int = Field(ge=0)
    spans_per_document: int = Field(ge=1)
    case_share: float = Field(ge=0, le=1)
    check: CheckParams
    neighbours: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    batch_size: int = Field(ge=1)
    shard_texts: int = Field(ge=1)
    seed: int
