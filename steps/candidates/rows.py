"""What searchers find as rows of the table `candidates`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from steps.core.tables import table_from_columns


def candidate_rows(
    query_ids: Sequence[str], doc_ids: Sequence[Sequence[str]], scores: Sequence[np.ndarray]
) -> pa.Table:
    """Rows of `candidates`: the documents of each query, best first, with their scores; ranks from 1."""
    lengths = [len(hit_ids) for hit_ids in doc_ids]
    ranks = [rank for length in lengths for rank in range(1, length + 1)]
    repeated_query_ids = np.repeat(np.array(query_ids, dtype=object), lengths).tolist()
    flat_doc_ids = [doc_id for hit_ids in doc_ids for doc_id in hit_ids]
    values = np.concatenate([*scores, np.zeros(0, dtype=np.float32)]).tolist()
    return table_from_columns("candidates", (repeated_query_ids, flat_doc_ids, ranks, values))
