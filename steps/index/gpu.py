"""The same work on a GPU, where faiss sees one. Kinds of index that faiss keeps off GPUs are worked on here, and told.

A GPU that is out of memory is an error: the CPU might take days for what was planned for it.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import faiss
import numpy as np

from slimtower.common.errors import OutOfMemory, line
from slimtower.serving.index_files import apply_settings, shards_of

C_INT = 2**31  # above what faiss takes as a seed
MOST_PROBES = 2048  # lists that a GPU visits in one search, and hits that it finds (GPU_MAX_SELECTION_K)

_OUT_OF_MEMORY = re.compile("out of memory|alloc fail|bad_alloc|cudaHostAlloc", re.IGNORECASE)  # faiss' words
_BROKEN = re.compile("cudaSuccess|CUDA error")

Search = Callable[[Mapping[str, int], np.ndarray, int], np.ndarray]


def inverted_lists(base: faiss.Index) -> Any:
    """The inverted-list index (IndexIVF) in an index, below any transform of its vectors; None without one."""
    ivf = faiss.try_extract_index_ivf(base)
    return None if ivf is None else faiss.downcast_index(ivf)


def seen() -> bool:
    """Whether faiss sees a GPU; its CPU wheel never does."""
    return bool(faiss.get_num_gpus() > 0)


def knn(queries: np.ndarray, vectors: np.ndarray, k: int, metric: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the k best of `vectors` `(n, dim)` for each query, exactly: `(queries, k)` each."""
    if seen():
        with memory():
            return faiss.knn_gpu(_resources(), queries, vectors, k, metric=metric, device=0)
    return faiss.knn(queries, vectors, k, metric=metric)


def train(index: faiss.Index, sample: np.ndarray) -> None:
    """Train the index; the k-means of inverted lists, most of the work, runs on the first GPU."""
    lists = inverted_lists(index)
    if not seen() or not _has_flat_centroids(lists):
        index.train(sample)
        return
    with memory():
        moved = faiss.index_cpu_to_gpu(_resources(), 0, lists.quantizer)  # a name that keeps it alive
        lists.clustering_index = moved
        try:
            index.train(sample)
        finally:
            lists.clustering_index = None


def add(index: faiss.Index, chunks: Callable[[], Iterator[np.ndarray]]) -> faiss.Index:
    """Add every chunk and return the index; on the first GPU, and back, when there is one.

    Of inverted lists that faiss keeps off GPUs (4-bit codes) the centroids go there alone: finding the nearest one is
    most of the work. Graphs and the like are filled where they are.
    """

    def work(target: faiss.Index) -> None:
        for chunk in chunks():
            target.add(chunk)

    if not seen() or isinstance(index, faiss.IndexFlat):  # to copy vectors there and back would gain nothing
        work(index)
        return index
    with memory():
        try:
            moved = faiss.index_cpu_to_gpu(_resources(), 0, index)
            work(moved)
            return faiss.index_gpu_to_cpu(moved)
        except RuntimeError as error:  # the work was done on a copy: the index itself is as it was
            _tell_refusal(index, error)
        with _centroids_there(inverted_lists(index)):
            work(index)
    return index


def _tell_refusal(index: Any, error: RuntimeError) -> None:
    """Say that faiss keeps this kind off GPUs; an error about the GPU is raised: faiss has one class for all."""
    if _OUT_OF_MEMORY.search(str(error)) or _BROKEN.search(str(error)):
        raise error
    _tell(type(faiss.downcast_index(index)).__name__, line(error)[-200:])


@cache
def _tell(kind: str, reason: str) -> None:
    print(f"index: faiss keeps {kind} off GPUs ({reason}); the CPU works on it", file=sys.stderr)


@contextmanager
def memory() -> Iterator[None]:
    """OutOfMemory where faiss says in its way that the GPU's memory is used up."""
    try:
        yield
    except RuntimeError as error:
        if not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise OutOfMemory(
            f"index: out of GPU memory: {line(error)[-300:]}; free the GPU, set index.shard_vectors to make smaller"
            " pieces, or set CUDA_VISIBLE_DEVICES to nothing to use the CPU"
        ) from error


def _has_flat_centroids(lists: Any) -> bool:
    return lists is not None and isinstance(faiss.downcast_index(lists.quantizer), faiss.IndexFlat)


@contextmanager
def _centroids_there(lists: Any) -> Iterator[None]:
    """While the block runs, the centroids of inverted lists (None: there are none) are on the GPU."""
    if not _has_flat_centroids(lists):
        yield
        return
    quantiser, owns_fields = lists.quantizer, lists.own_fields
    moved = faiss.index_cpu_to_gpu(_resources(), 0, quantiser)
    lists.own_fields = False
    lists.quantizer = moved
    try:
        yield
    finally:
        lists.quantizer, lists.own_fields = quantiser, owns_fields


def searching(index: Any) -> Search:
    """A function of settings, queries and k that returns rows; on a GPU that can hold the index, but for re-ranking."""

    def here(settings: Mapping[str, int], queries: np.ndarray, k: int) -> np.ndarray:
        apply_settings(index, settings)
        return index.search(queries, k)[1]

    if not seen() or len(shards_of(index)) > 1:
        return here
    refined = isinstance(index, faiss.IndexRefine)
    base = index.base_index if refined else index
    with memory():
        try:
            moved = faiss.index_cpu_to_gpu(_resources(), 0, base)
        except RuntimeError as error:
            _tell_refusal(base, error)
            return here
    gpu_index = faiss.IndexRefine(moved, index.refine_index) if refined else moved
    space = faiss.GpuParameterSpace()

    def there(settings: Mapping[str, int], queries: np.ndarray, k: int) -> np.ndarray:
        if max(settings.get("nprobe", 1), k * settings.get("k_factor_rf", 1)) > MOST_PROBES:
            return here(settings, queries, k)
        for name, value in settings.items():
            space.set_index_parameter(gpu_index, name, float(value))
        with memory():
            return gpu_index.search(queries, k)[1]

    return there


@cache
def _resources() -> Any:
    return faiss.StandardGpuResources()
