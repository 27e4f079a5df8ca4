"""Where an index keeps its inverted lists."""

from typing import Any

import faiss

C_INT = 2**31  # above what faiss takes as a seed


def inverted_lists(base: faiss.Index) -> Any:
    """The inverted-list index (IndexIVF) in an index, below any transform of its vectors; None without one."""
    ivf = faiss.try_extract_index_ivf(base)
    return None if ivf is None else faiss.downcast_index(ivf)
