"""Retrieval measures per query, with trec_eval's numbers and its rule for ties.

trec_eval compares scores as float32 and orders equal ones by document id, descending.
"""

from collections.abc import Mapping, Sequence

import ir_measures
import numpy as np
from ir_measures import AP, RR, R, nDCG

NDCG = "nDCG@10"
UNCUT = "MRR"  # 1 / rank of the first relevant document among all hits
# RR without a cut-off: ir_measures gives RR@10 to MS MARCO's script, which breaks ties the other way round.
_COMPUTED = {
    NDCG: nDCG @ 10,
    UNCUT: RR,
    "MAP@1000": AP @ 1000,
    "Recall@5": R @ 5,
    "Recall@20": R @ 20,
    "Recall@100": R @ 100,
}
MEASURES = (NDCG, "MRR@10", "MAP@1000", "Recall@5", "Recall@20", "Recall@100")

Qrels = Mapping[str, Mapping[str, int]]


def per_query(
    qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[Sequence[str]], scores: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Each of MEASURES, and UNCUT, as float64 `(queries,)` in the order of `query_ids`, from the hits of each query.

    A document is relevant from grade 1. A query without hits, or without relevant documents, counts 0.
    """
    named = _calculated(list(_COMPUTED), qrels, query_ids, doc_ids, scores)
    reciprocal = named[UNCUT]
    named["MRR@10"] = np.where(reciprocal >= 1 / 10, reciprocal, 0.0)
    return named


def ndcg_at_10(
    qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[Sequence[str]], scores: Sequence[np.ndarray]
) -> np.ndarray:
    """nDCG@10 alone, float64 `(queries,)`; arguments as for `per_query`."""
    return _calculated([NDCG], qrels, query_ids, doc_ids, scores)[NDCG]


def ndcg_at_10_of_matrix(
    qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[str], scores: np.ndarray
) -> np.ndarray:
    """nDCG@10, float64 `(queries,)`, of a score for every query and document, `(queries, documents)`."""
    return ndcg_at_10(qrels, query_ids, *best_hits(doc_ids, scores, 10))


def best_hits(doc_ids: Sequence[str], scores: np.ndarray, depth: int) -> tuple[list[list[str]], list[np.ndarray]]:
    """Ids and scores of the best `depth` documents of each row of `scores` `(queries, documents)`, in no order.

    All that score as the last of them are there too, so that no tie is broken before a measure breaks it.
    """
    held = scores.astype(np.float32, copy=False)
    if not 0 < depth < held.shape[1]:
        return [list(doc_ids)] * len(held), list(held)
    least = np.partition(held, -depth, axis=1)[:, -depth]
    chosen = [np.flatnonzero(row >= last) for row, last in zip(held, least, strict=True)]
    ids = [[doc_ids[column] for column in columns.tolist()] for columns in chosen]
    return ids, [row[columns] for row, columns in zip(held, chosen, strict=True)]


def trec_order(doc_ids: Sequence[str], scores: np.ndarray) -> list[int]:
    """Positions of the hits as trec_eval ranks them: score descending, then document id descending."""
    by_id = sorted(range(len(doc_ids)), key=doc_ids.__getitem__, reverse=True)
    return sorted(by_id, key=lambda position: -float(scores[position]))


def _calculated(
    names: Sequence[str],
    qrels: Qrels,
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    """Some of _COMPUTED by name."""
    judged = [ir_measures.Qrel(query, doc, grade) for query in query_ids for doc, grade in qrels[query].items()]
    hits = {
        query: dict(zip(docs, values.tolist(), strict=True))
        for query, docs, values in zip(query_ids, doc_ids, scores, strict=True)
    }
    position = {query: row for row, query in enumerate(query_ids)}
    measures = {_COMPUTED[name]: np.zeros(len(query_ids)) for name in names}
    for metric in ir_measures.pytrec_eval.iter_calc(list(measures), judged, hits):
        measures[metric.measure][position[metric.query_id]] = metric.value
    return {name: measures[_COMPUTED[name]] for name in names}
