"""Knobs of the stage `index`."""

from typing import Literal

from pydantic import Field, model_validator

from steps.core.params import Strict

Kind = Literal["flat", "ivfflat", "ivfpq", "hnsw", "sq8", "binary"]


class SemanticIdParams(Strict):
    """Semantic IDs: residual k-means codes of every document; codes are stored in 16 bits."""

    levels: int = Field(ge=0, le=64)
    codes: int = Field(ge=2, le=32767)


class IndexParams(Strict):
    """How the teacher's document embeddings are indexed; the exact index is always built."""

    kind: Kind
    factory: str
    target_recall: float = Field(gt=0, le=1)
    training_vectors: int = Field(ge=1)
    recall_queries: int = Field(ge=1)
    shard_vectors: int = Field(ge=0)
    dim: int = Field(ge=0)
    retrain_after: float = Field(ge=0)
    semantic_ids: SemanticIdParams
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _flat_has_no_factory(self) -> "IndexParams":
        if self.kind == "flat" and self.factory:
            raise ValueError(f"factory is {self.factory!r} but kind flat builds no index beside the exact one")
        return self
