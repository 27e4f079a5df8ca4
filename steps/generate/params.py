"""Section `generate` of params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from steps.core.params import Strict


class SmallBartParams(Strict):
    """The BART that is trained inside the stage when `generate.model` is empty."""

    d_model: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    vocabulary: int = Field(ge=300)
    corpus_texts: int = Field(ge=0)
    mask_ratio: float = Field(gt=0, lt=1)
    epochs: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide d_model ({self.d_model})")
        return self


class GenerateParams(Strict):
    """Generation of new queries: one a sigma and source, which is a training query or a text of a document."""

    model: str
    mask_ratio: float = Field(ge=0, lt=1)
    sigmas: list[Annotated[float, Field(ge=0)]] = Field(min_length=1)
    do_sample: bool
    temperature: float = Field(gt=0)
    top_k: int = Field(ge=0)
    beams: int = Field(ge=1)
    max_tokens: int = Field(ge=4)
    batch_size: int = Field(ge=1)
    max_queries: int = Field(ge=0)
    least_sources: int = Field(ge=0)
    document_model: str
    document_tokens: int = Field(ge=8)
    judge: str = Field(min_length=1)
    judge_sample: int = Field(ge=1)
    seed: int = Field(ge=0)
    small: SmallBartParams

    @model_validator(mode="after")
    def _document_model_has_documents(self) -> Self:
        if self.document_model and not (self.max_queries and self.least_sources):
            raise ValueError("document_model reads nothing while least_sources or max_queries is 0; raise them")
        return self
