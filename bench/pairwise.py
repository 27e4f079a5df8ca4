"""Algorithm 1 of ScalingNote as printed: each query compared with every other, the baseline of the mining benchmark."""

from collections.abc import Collection, Mapping

import numpy as np

ABSENT = -1


def as_printed(
    rows: Mapping[int, Mapping[int, float]],
    givers: Collection[int],
    *,
    threshold: float,
    top_terms: int,
    min_terms: int,
) -> set[tuple[int, int]]:
    """All associations (receiver, giver) of importances by query and term: every pair looked at, in plain Python."""
    queries = {query: held for query, held in rows.items() if len(held) >= min_terms}
    lenders = [(query, held) for query, held in queries.items() if query in givers]
    found = set()
    for receiver, held in queries.items():
        top = sorted(held, key=lambda term: (-held[term], term))[:top_terms]
        for giver, others in lenders:
            if all(others.get(term, 0.0) > threshold for term in top) and giver != receiver:
                found.add((receiver, giver))
    return found


def pairwise(
    terms: np.ndarray, importances: np.ndarray, givers: np.ndarray, *, threshold: float, top_terms: int, min_terms: int
) -> np.ndarray:
    """All associations of one data set's queries, without a cap: int64 (found, 2), sorted rows (receiver, giver).

    Args: terms: int64 (queries, width), keys of each query's distinct terms, filled up with -1; importances: float64
    (queries, width); givers: bool (queries,), the queries that may lend. Of equally important terms, the lesser key is
    the more important. Queries of fewer than `min_terms` terms take no part. Vectorised over the givers, no index.
    """
    held = terms != ABSENT
    numbers = np.full(terms.shape, ABSENT, np.int32)  # half the memory to scan
    numbers[held] = np.unique(terms[held], return_inverse=True)[1]
    takes_part = held.sum(axis=1) >= min_terms
    lenders = np.flatnonzero(givers & takes_part)
    strong = np.where(held & (importances > threshold), numbers, ABSENT)[lenders].T.copy()
    order = np.lexsort((numbers, -np.where(held, importances, -np.inf)))
    top = np.take_along_axis(numbers, order[:, :top_terms], axis=1)

    found = []
    for receiver in np.flatnonzero(takes_part):
        first, *others = top[receiver][top[receiver] != ABSENT].tolist()
        columns = np.flatnonzero((strong == first).any(axis=0))
        for term in others:
            columns = columns[(strong[:, columns] == term).any(axis=0)]
        from_whom = lenders[columns]
        from_whom = from_whom[from_whom != receiver]
        found.append(np.column_stack([np.full(len(from_whom), receiver), from_whom]))
    return np.concatenate(found) if found else np.empty((0, 2), np.int64)
