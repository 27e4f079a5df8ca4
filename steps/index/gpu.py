"""The same work on a GPU, where faiss sees one."""

from collections.abc import Callable
from typing import Any

import faiss

from steps.index.inverted_lists import inverted_lists

Work = Callable[[faiss.Index], None]


def on_gpu(index: faiss.Index, work: Work) -> faiss.Index:
    """Do `work` (training, adding) on the index and return it; on the first GPU, and back, when there is one.

    Of inverted lists whose codes faiss keeps off GPUs (4-bit codes), the centroids go there alone: finding the nearest
    one is most of the work. Other kinds that it keeps off GPUs, such as graphs, are worked on where they are.
    """
    if faiss.get_num_gpus() == 0:
        work(index)
        return index
    resources = faiss.StandardGpuResources()
    try:
        moved = faiss.index_cpu_to_gpu(resources, 0, index)
        work(moved)
        return faiss.index_gpu_to_cpu(moved)
    except RuntimeError:  # the work was done on a copy: the index itself is as it was
        if inverted_lists(index) is None:
            work(index)
        else:
            _centroids_on_gpu(inverted_lists(index), resources, lambda: work(index))
        return index


def _centroids_on_gpu(lists: Any, resources: Any, work: Callable[[], None]) -> None:
    """Do `work` while the centroids are on the GPU; those that it trains come back."""
    own, owns = lists.quantizer, lists.own_fields
    moved = faiss.index_cpu_to_gpu(resources, 0, own)
    lists.own_fields = False
    lists.quantizer = moved
    try:
        work()
    finally:
        lists.quantizer, lists.own_fields = own, owns
    if own.ntotal != moved.ntotal:
        own.reset()
        own.add(moved.reconstruct_n(0, moved.ntotal))
    own.is_trained = moved.is_trained
