"""Retrieval measures per query, with trec_eval's numbers and its rule for ties."""

from collections.abc import Mapping, Sequence

import ir_measures
import numpy as np
from ir_measures import AP, RR, R, nDCG

# RR without a cut-off: ir_measures gives RR@10 to MS MARCO's script, which breaks ties the other way round.
_COMPUTED = {
    "nDCG@10": nDCG @ 10,
    "MRR": RR,
    "MAP@1000": AP @ 1000,
    "Recall@5": R @ 5,
    "Recall@20": R @ 20,
    "Recall@100": R @ 100,
}
MEASURES = ("nDCG@10", "MRR@10", "MAP@1000", "Recall@5", "Recall@20", "Recall@100")
UNCUT = "MRR"  # 1 / rank of the first relevant document among all hits


def per_query(
    judgements: Mapping[str, Mapping[str, int]],
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    """Each of MEASURES, and UNCUT, as float64 `(queries,)` in the order of `query_ids`.

    A document is relevant from grade 1. Equal scores are ordered by document id, descending, as trec_eval does. A
    query without hits counts 0.
    """
    qrels = [ir_measures.Qrel(query, doc, grade) for query in query_ids for doc, grade in judgements[query].items()]
    hits = {
        query: dict(zip(docs, values.tolist(), strict=True))
        for query, docs, values in zip(query_ids, doc_ids, scores, strict=True)
    }
    position = {query: row for row, query in enumerate(query_ids)}
    values = {str(measure): np.zeros(len(query_ids)) for measure in _COMPUTED.values()}
    for metric in ir_measures.pytrec_eval.iter_calc(list(_COMPUTED.values()), qrels, hits):
        values[str(metric.measure)][position[metric.query_id]] = metric.value
    named = {name: values[str(measure)] for name, measure in _COMPUTED.items()}
    reciprocal = named[UNCUT]
    named["MRR@10"] = np.where(reciprocal >= 1 / 10, reciprocal, 0.0)
    return named


def trec_order(doc_ids: Sequence[str], scores: np.ndarray) -> list[int]:
    """Positions of the hits as trec_eval ranks them: score descending, then document id descending."""
    by_id = sorted(range(len(doc_ids)), key=doc_ids.__getitem__, reverse=True)
    return sorted(by_id, key=lambda position: -float(scores[position]))
