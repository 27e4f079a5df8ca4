"""Knobs of the stage `index`."""

from pydantic import Field

from steps.core.params.strict import Strict


class IvfPqParams(Strict):
    """Inverted lists with product quantisation."""

    lists: int = Field(ge=1)
    subquantizers: int = Field(ge=1)
    bits: int = Field(ge=1, le=12)
    probes: int = Field(ge=1)


class IndexParams(Strict):
    """How the teacher's document embeddings are indexed; the exact index is always built."""

    ivfpq: IvfPqParams
    training_vectors: int = Field(ge=1)
    recall_queries: int = Field(ge=1)
    seed: int
