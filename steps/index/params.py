"""Knobs of the stage `index`, and the faiss factory string of each kind of index."""

import math
import re
from typing import Literal

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Seed

TRAINING_VECTORS = 100_000  # drawn to train centroids and quantisers
Kind = Literal["flat", "ivfflat", "ivfpq", "hnsw", "sq8", "binary"]
POINTS_A_CENTROID = 39  # faiss' own limit (ClusteringParameters.min_points_per_centroid) for training k-means
GRAPH_LINKS = 32
_REFINED = re.compile(r"^(?P<base>.+),(?:R(?P<flat>Flat)|Refine\((?P<codes>.+)\))$")


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
    """Vectors a shard, 0 = one piece; they become one index where the kind can, else they are searched together."""
    dim: int = Field(default=0, ge=0)
    """First dimensions that are kept, renormalised (for teachers trained like that); 0 = all."""
    seed: Seed = 7
    """Of the training."""

    @model_validator(mode="after")
    def _flat_has_no_factory(self) -> "IndexParams":
        if self.kind == "flat" and self.factory:
            raise ValueError(f"factory is {self.factory!r} but kind flat builds no index beside the exact one")
        return self


def factory(params: IndexParams, count: int, dim: int) -> str:
    """Factory string of the approximate index over `count` vectors of `dim` dimensions."""
    return params.factory or of_kind(params.kind, count, dim)


def of_kind(kind: Kind, count: int, dim: int) -> str:
    """Factory string of a kind: about 4 sqrt(count) lists, and never fewer than 39 training vectors a centroid.

    `Flat` for too few vectors to train the 16 centroids of a 4-bit code; a scan of so few is the fastest.
    """
    if count < 16 * POINTS_A_CENTROID:
        return "Flat"
    lists = min(round(4 * math.sqrt(count)), min(count, TRAINING_VECTORS) // POINTS_A_CENTROID)
    # of four dimensions or more each
    subvectors = max(number for number in range(1, max(1, dim // 4) + 1) if dim % number == 0)
    match kind:
        case "flat":
            return "Flat"
        case "ivfflat":
            return f"IVF{lists},Flat"
        case "ivfpq":  # 4-bit codes are compared in registers (André et al. 2017), and train in a hundredth of the time
            return f"OPQ{subvectors}_{dim},IVF{lists},PQ{subvectors}x4fs,Refine(SQ8)"
        case "hnsw":
            return f"HNSW{GRAPH_LINKS}"
        case "sq8":
            return "SQ8"
        case "binary":  # one bit a dimension after a random rotation (RaBitQ, Gao and Long 2024), then re-ranked
            return f"RR{dim},RaBitQ,Refine(SQ8)"


def split_refine(text: str) -> tuple[str, str | None]:
    """A factory string as what searches first and what re-ranks its candidates (None without)."""
    if match := _REFINED.match(text):
        return match["base"], match["flat"] or match["codes"]
    return text, None
