"""The same work on a GPU, where faiss sees one."""

from collections.abc import Callable

import faiss


def on_gpu(index: faiss.Index, work: Callable[[faiss.Index], None]) -> faiss.Index:
    """Do `work` (training, adding) on the index and return it; on the first GPU, and back, when there is one.

    Kinds that faiss keeps off GPUs (graphs, binary codes), and indexes too large for one, are worked on where they are.
    """
    if faiss.get_num_gpus() == 0:
        work(index)
        return index
    try:
        moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        work(moved)
        return faiss.index_gpu_to_cpu(moved)
    except RuntimeError:  # work failed on the copy: the index itself is as it was
        work(index)
        return index
