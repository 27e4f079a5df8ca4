"""AUC over judged pairs: does a relevant pair of query and document score above one that is not, whatever the query?

ScalingNote, Sec. 5.1: all judged pairs in one ranking by score; AUC-REL by relevance, AUC-SAT by satisfaction. Pairs of
queries without a relevant document count. Fused and re-ranked scores compare within a query only and have no AUC.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.stats import rankdata

from steps.core.judged import JudgedSet
from steps.evaluate.params import REL, SAT
from steps.evaluate.systems import Search

_SCORES = 2_000_000  # hits in memory at once


def pooled_auc(names: Iterable[str], search: Search, judged: JudgedSet, depth: int) -> dict[str, float]:
    """Those of REL and SAT that are named and have pairs of both kinds; `depth`: hits that are asked for at first."""
    labels = {name: labels for name in (REL, SAT) if name in names and (labels := _labels(judged, name))}
    labels = {name: by_pair for name, by_pair in labels.items() if len(set(by_pair.values())) == 2}
    if not labels:
        return {}
    doc_ids: dict[str, set[str]] = {}
    for query, doc in set().union(*labels.values()):
        doc_ids.setdefault(query, set()).add(doc)
    scores = _pair_scores(search, judged, doc_ids, depth)
    return {
        name: auc(np.array([scores.get(pair, -np.inf) for pair in by_pair]), np.array(list(by_pair.values())))
        for name, by_pair in labels.items()
    }


def auc(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Area under the ROC curve of pairs, `(pairs,)` each: the chance that a relevant one scores higher, ties half.

    By the rank sum of Mann and Whitney; there must be pairs of both kinds.
    """
    good = int(relevant.sum())
    bad = len(relevant) - good
    return float((rankdata(scores)[relevant].sum() - good * (good + 1) / 2) / (good * bad))


def _labels(judged: JudgedSet, name: str) -> dict[tuple[str, str], bool]:
    """Whether each judged pair is a good one."""
    relevance = judged.qrels | {query: dict(judgements) for query, (_, judgements) in judged.without_relevant.items()}
    grades, threshold = (relevance, judged.relevant_from) if name == REL else (judged.satisfaction, 1)
    return {(query, doc): grade >= threshold for query, row in grades.items() for doc, grade in row.items()}


def _pair_scores(
    search: Search, judged: JudgedSet, doc_ids: Mapping[str, set[str]], depth: int
) -> dict[tuple[str, str], float]:
    """Scores of the wanted documents of each query: those below the first hits are found by asking for ten times more.

    What BM25 does not find shares no term with the query, and has no score.
    """
    scores: dict[tuple[str, str], float] = {}
    texts = dict(zip(judged.query_ids, judged.texts, strict=True))
    texts |= {query: text for query, (text, _) in judged.without_relevant.items()}
    pending = sorted(doc_ids)
    while pending:
        deeper, chunk = [], max(1, _SCORES // depth)
        for start in range(0, len(pending), chunk):
            queries = pending[start : start + chunk]
            results = search(judged.dataset, [texts[query] for query in queries], depth)
            for query, values, docs in zip(queries, *results, strict=True):
                hits = dict(zip(docs, values.tolist(), strict=True))
                scores |= {(query, doc): hits[doc] for doc in doc_ids[query] & hits.keys()}
                if len(docs) == depth and not doc_ids[query] <= hits.keys():
                    deeper.append(query)
        pending, depth = deeper, depth * 10
    return scores
