"""From `index.kind` to a faiss factory string that suits the number of vectors and of their dimensions."""

import math
import re

from steps.index.params import TRAINING_VECTORS, IndexParams, Kind

POINTS_A_CENTROID = 39  # faiss' own limit (ClusteringParameters.min_points_per_centroid) for training k-means
GRAPH_LINKS = 32
_REFINED = re.compile(r"^(?P<base>.+),(?:R(?P<flat>Flat)|Refine\((?P<codes>.+)\))$")


def factory(params: IndexParams, count: int, dim: int) -> str:
    """Factory string of the approximate index over `count` vectors of `dim` dimensions."""
    return params.factory or of_kind(params.kind, count, dim, min(count, TRAINING_VECTORS))


def of_kind(kind: Kind, count: int, dim: int, trained: int) -> str:
    """Factory string of a kind: about 4 sqrt(count) lists, and never fewer than 39 of the `trained` vectors a centroid.

    Too few vectors for the 16 centroids of a 4-bit code: `Flat`, whatever the kind; a scan of so few is the fastest.
    """
    if count < 16 * POINTS_A_CENTROID:
        return "Flat"
    lists = min(round(4 * math.sqrt(count)), trained // POINTS_A_CENTROID)
    subvectors = subquantizers(dim)
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


def subquantizers(dim: int) -> int:
    """Subvectors of a vector for product quantisation: as many as have four dimensions or more each."""
    return max(number for number in range(1, max(1, dim // 4) + 1) if dim % number == 0)


def split_refine(text: str) -> tuple[str, str | None]:
    """A factory string as what searches first and what re-ranks its candidates (None without)."""
    if match := _REFINED.match(text):
        return match["base"], match["flat"] or match["codes"]
    return text, None
