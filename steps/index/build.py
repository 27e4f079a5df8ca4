"""Build faiss indexes over inner products, and measure what the approximate one loses."""

import faiss
import numpy as np

from steps.core.errors import UserError
from steps.core.params.index import IvfPqParams


def flat(vectors: np.ndarray) -> faiss.Index:
    """Exact inner-product index of `(n, dim)` float32 vectors."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    return index


def ivfpq_factory(count: int, width: int, params: IvfPqParams) -> str:
    """faiss factory string for `count` vectors; UserError when the width cannot be split into the subquantizers.

    faiss wants 39 training points a centroid: small collections get fewer lists and fewer bits.
    """
    if width % params.subquantizers:
        raise UserError(
            f"index.ivfpq.subquantizers is {params.subquantizers}, which does not divide the embedding width {width};"
            f" choose a divisor, such as {_nearest_divisor(width, params.subquantizers)}"
        )
    lists = max(1, min(params.lists, count // 39))
    bits = params.bits
    while bits > 1 and 39 * 2**bits > count:
        bits -= 1
    return f"IVF{lists},PQ{params.subquantizers}x{bits}"


def _nearest_divisor(width: int, wanted: int) -> int:
    return min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - wanted))


def ivfpq(vectors: np.ndarray, factory: str, probes: int, training_vectors: int, seed: int) -> faiss.Index:
    """Train the factory's index on a seeded sample of the `(n, dim)` vectors and add them all."""
    index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    count = min(len(vectors), training_vectors)
    sample = np.sort(np.random.default_rng(seed).choice(len(vectors), size=count, replace=False))
    inverted = faiss.extract_index_ivf(index)
    inverted.cp.seed = seed
    index.train(np.ascontiguousarray(vectors[sample]))
    index.add(np.ascontiguousarray(vectors))
    inverted.nprobe = min(probes, inverted.nlist)
    return index


def recall(approximate: faiss.Index, exact: faiss.Index, queries: np.ndarray, k: int = 10) -> float:
    """Mean share of the exact top k that the approximate index finds, for `(n, dim)` queries."""
    k = min(k, exact.ntotal)
    found, wanted = approximate.search(queries, k)[1], exact.search(queries, k)[1]
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(found, wanted, strict=True)]))
