"""Knobs of the stage `index`."""

from typing import Literal

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Seed

TRAINING_VECTORS = 100_000  # drawn to train centroids and quantisers
Kind = Literal["flat", "ivfflat", "ivfpq", "hnsw", "sq8", "binary"]


class IndexParams(Strict):
    """How the teacher's document embeddings are indexed; the exact index is always built."""

    kind: Kind
    """What is served beside the exact index. flat: nothing; ivfflat: inverted lists of whole vectors, little to lose,
    nothing saved; ivfpq: inverted lists of 4-bit product codes behind an OPQ rotation, candidates re-ranked with 8
    bits a dimension; hnsw: a graph over whole vectors, the fastest on large corpora, and the largest; sq8: 8 bits a
    dimension, scanned; binary: 1 bit a dimension (RaBitQ), scanned, candidates re-ranked with 8 bits a dimension. The
    larger the corpus, the more lists; fewer than 624 documents are scanned whole, whatever the kind.
    """
    factory: str = ""
    """A faiss factory string in place of the kind's own, such as "IVF1024,SQ8" or "HNSW32,RFlat"."""
    target_recall: float = Field(gt=0, le=1)
    """Recall@10 against the exact index, on dev queries, that the search settings (lists probed, graph nodes visited,
    candidates re-ranked) are chosen to reach; when none does, the best is kept and the stage says so. A list that is
    not probed hides first hits as often as tenth ones, so expect nDCG@10 to lose about 1 - recall.
    """
    shard_vectors: int = Field(default=0, ge=0)
    """Vectors a shard, 0 = one piece; merged where the kind can, else searched together."""
    dim: int = Field(default=0, ge=0)
    """First dimensions that are kept, renormalised (for teachers trained like that); 0 = all."""
    seed: Seed = 7
    """Of the training."""

    @model_validator(mode="after")
    def _flat_has_no_factory(self) -> "IndexParams":
        if self.kind == "flat" and self.factory:
            raise ValueError(f"factory is {self.factory!r} but kind flat builds no index beside the exact one")
        return self
