"""Section `generate` of params.yaml."""

from typing import Self

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import ModelName, Seed


class SmallBartParams(Strict):
    """How the BART is trained inside the stage when `generate.model` is empty."""

    max_queries: int = Field(default=20_000, ge=0)
    """Training queries that train it, drawn by seed where there are more; 0 = all."""
    epochs: float = Field(default=1.2, gt=0)
    """Passes over the texts."""


class GenerateParams(Strict):
    """How new queries are written: one a sigma for each source, a training query or a text of a document.

    Unlike EmbedDistill's BART it always masks one token and samples words (temperature 0.7, top 10). No run with
    facebook/bart-base is on record.
    """

    model: ModelName
    """"" = the small BART below, trained in the stage; else a seq2seq folder or name (facebook/bart-base)."""
    batch_size: int = Field(default=256, ge=1)
    """Queries written at once."""
    max_queries: int = Field(ge=0)
    """Training queries to start from, drawn by seed when there are more; 0 = generate nothing."""
    least_sources: int = Field(ge=0)
    """Where there are fewer, titles and sentences of documents make up for them."""
    document_model: ModelName = ""
    """What writes queries from least_sources documents, of which it reads the first 256 tokens: a doc2query model or a
    causal language model, by folder or name, such as gemma-3-270m-4bit (`make weights NAME=gemma`); "" = none.
    """
    round_trip: int = Field(default=1, ge=0)
    """A query of a document stays if that is among so many of those documents that the judge finds first; 0 = all."""
    judge: ModelName = Field(default="all-MiniLM-L6-v2", min_length=1)
    """Tower that makes the round trip, and whose cosines between new query and source the report gives."""
    seed: Seed = 7
    """Of the draws and the training."""
    small: SmallBartParams = SmallBartParams()
    """Only with model: ""."""

    @model_validator(mode="after")
    def _document_model_has_documents(self) -> Self:
        if self.document_model and not (self.max_queries and self.least_sources):
            raise ValueError("document_model reads nothing while least_sources or max_queries is 0; raise them")
        return self
