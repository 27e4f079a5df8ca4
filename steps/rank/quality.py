"""Is the ranker better than the searcher whose candidates it ranks? Measured on judged dev queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from sentence_transformers import CrossEncoder, SentenceTransformer

from steps.core.corpus import check_documents, texts_of
from steps.core.judged import read_judged_sets
from steps.core.measures import is_better, ndcg_at_10, p_of_gain
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower
from steps.rank.params import DEPTH, CrossEncoderParams
from steps.rank.relevance import draw_ids, queries_with_candidates, read_candidates, searchers, union
from steps.retrieval.lexical import corpus_bm25
from steps.retrieval.rankers import pair_scores

BASELINE = "bm25"


class Pairs(NamedTuple):
    """A query, its data set, and documents of it that are scored."""

    text: str
    dataset: str
    doc_ids: list[str]


Scores = list[dict[str, float]]
"""By document, of each query."""


def bm25_scores(ingest: Path, query_pairs: Sequence[Pairs]) -> Scores:
    """BM25 over the whole data set; 0 without a shared term."""
    by_query: Scores = [{} for _ in query_pairs]
    named = {doc_id for pairs in query_pairs for doc_id in pairs.doc_ids}
    for dataset in sorted({pairs.dataset for pairs in query_pairs}):
        engine = corpus_bm25(ingest, dataset)
        rows = {doc_id: row for row, doc_id in enumerate(engine.doc_ids) if doc_id in named}
        for number, pairs in enumerate(query_pairs):
            if pairs.dataset == dataset:
                values = engine.scores(pairs.text, np.array([rows[doc_id] for doc_id in pairs.doc_ids], dtype=np.int64))
                by_query[number] = dict(zip(pairs.doc_ids, values.tolist(), strict=True))
    return by_query


def base_scores(query_pairs: Sequence[Pairs], texts: Mapping[str, str], params: CrossEncoderParams) -> Scores:
    """`tower_scores` of the base, which reads `max_length` tokens of a document as the ranker does of a pair."""
    tower = load_tower(resolve_base(params.base))
    tower.max_seq_length = min(tower.max_seq_length or params.max_length, params.max_length)
    return tower_scores(tower, query_pairs, texts, params)


def tower_scores(
    tower: SentenceTransformer, query_pairs: Sequence[Pairs], texts: Mapping[str, str], params: CrossEncoderParams
) -> Scores:
    """Similarity of a tower's embeddings; `texts` are those of the documents, by id."""
    ids = sorted({doc_id for pairs in query_pairs for doc_id in pairs.doc_ids})
    rows = {doc_id: row for row, doc_id in enumerate(ids)}
    embed = partial(encode, tower, precision=params.precision, batch_size=params.batch_size)
    documents = embed([texts[doc_id] for doc_id in ids], "document", caption="base on dev")
    queries = embed([pairs.text for pairs in query_pairs], "query")
    by_query: Scores = []
    for query, pairs in zip(queries, query_pairs, strict=True):
        vectors = documents[[rows[doc_id] for doc_id in pairs.doc_ids]]
        scores = tower.similarity(query[None], vectors)[0].tolist()
        by_query.append(dict(zip(pairs.doc_ids, scores, strict=True)))
    return by_query


@dataclass(frozen=True)
class DevQuery:
    """A dev query, its judgements, and its candidates by any searcher; `baseline`: those of the one compared with."""

    query_id: str
    dataset: str
    text: str
    grades: dict[str, int]
    baseline: list[str]
    candidates: list[str]

    @property
    def relevant(self) -> list[str]:
        """Documents judged relevant."""
        return sorted(doc_id for doc_id, grade in self.grades.items() if grade > 0)


def measure(
    ranker: CrossEncoder, ingest: Path, candidates: Path, params: CrossEncoderParams, *, base_embeds: bool
) -> dict[str, Any] | None:
    """How well the ranker ranks the candidates of judged dev queries; None when none has candidates.

    `ndcg_candidates` is nDCG@10 of the order of one searcher, BM25 if it is there, else the first; `ndcg_reranked` that
    of all searchers' candidates as the ranker orders them; `p_value` is of the one-sided paired t-test of a gain.
    `auc` is the mean over queries of the probability that a relevant document scores above another: one of the
    query's candidates that is judged not relevant (`against_judged` queries), or, where no candidate is, one that is
    not judged (`against_unjudged`). Beside the ranker's `mean` stand, over the same pairs, `bm25` and, if
    `base_embeds`, as a base that is an encoder does, the similarity of its embeddings, `base`; else None.
    """
    searcher = BASELINE if BASELINE in searchers(candidates) else searchers(candidates)[0]
    dev = dev_queries(ingest, candidates, searcher, params)
    if not dev:
        return None
    query_pairs, texts = measured_pairs(dev, ingest)
    text_pairs = [(pairs.text, texts[doc_id]) for pairs in query_pairs for doc_id in pairs.doc_ids]
    scores = pair_scores(
        ranker, text_pairs, precision=params.precision, batch_size=params.batch_size, caption="ranker on dev"
    )
    bounds = np.cumsum([len(pairs.doc_ids) for pairs in query_pairs])[:-1]
    scored = [
        dict(zip(pairs.doc_ids, values.tolist(), strict=True))
        for pairs, values in zip(query_pairs, np.split(scores, bounds), strict=True)
    ]
    baselines = {
        "bm25": mean_auc(dev, bm25_scores(ingest, query_pairs))["mean"],
        "base": mean_auc(dev, base_scores(query_pairs, texts, params))["mean"] if base_embeds else None,
    }
    rank_scores = [-np.arange(len(query.baseline), dtype=np.float64) for query in dev]
    before = _ndcg(dev, [query.baseline for query in dev], rank_scores)
    after = reranked_ndcg(dev, scored)
    return {
        "n": len(dev),
        "searcher": searcher,
        "ndcg_candidates": float(before.mean()),
        "ndcg_reranked": float(after.mean()),
        "p_value": p_of_gain(before, after),
        "reranking_is_better": is_better(before, after),
        "auc": mean_auc(dev, scored) | baselines,
    }


def dev_queries(ingest: Path, candidates: Path, searcher: str, params: CrossEncoderParams) -> list[DevQuery]:
    """At most `params.dev_queries` judged dev queries that have candidates, drawn by seed, in order of their ids."""
    with_candidates = queries_with_candidates(candidates)
    judged = {
        query_id: (dataset.dataset, text, dataset.qrels[query_id])
        for dataset in read_judged_sets(ingest, ["dev"])
        for query_id, text in zip(dataset.query_ids, dataset.texts, strict=True)
        if query_id in with_candidates
    }
    ids = draw_ids(judged, params.dev_queries, params.seed)
    baseline: dict[str, list[str]] = {}
    ranked = read_candidates(candidates, searcher, ids, DEPTH).sort_by("rank")
    for query_id, doc_id in zip(ranked["query_id"].to_pylist(), ranked["doc_id"].to_pylist(), strict=True):
        baseline.setdefault(query_id, []).append(doc_id)
    pools = union(candidates, ids, DEPTH)
    return [
        DevQuery(query_id, *judged[query_id], baseline.get(query_id, []), pools[query_id])
        for query_id in ids
        if query_id in pools
    ]


def measured_pairs(dev: list[DevQuery], ingest: Path) -> tuple[list[Pairs], dict[str, str]]:
    """Of each query the documents that are scored, its candidates and relevant ones, and the texts of all by id.

    UserError for a candidate that the corpus in `ingest` lacks.
    """
    named = {doc_id for query in dev for doc_id in query.candidates}
    texts = texts_of(ingest, named.union(*(query.relevant for query in dev)))
    check_documents(sorted(named), texts, ingest)
    doc_ids = [sorted({*query.candidates, *query.relevant} & texts.keys()) for query in dev]
    return [Pairs(query.text, query.dataset, ids) for query, ids in zip(dev, doc_ids, strict=True)], texts


def reranked_ndcg(dev: list[DevQuery], scored: Scores) -> np.ndarray:
    """nDCG@10 of each query, its candidates in the order of their scores, `(queries,)`."""
    pools = [query.candidates for query in dev]
    values = [np.array([by_id[doc_id] for doc_id in ids]) for ids, by_id in zip(pools, scored, strict=True)]
    return _ndcg(dev, pools, values)


def _ndcg(dev: list[DevQuery], doc_ids: list[list[str]], scores: list[np.ndarray]) -> np.ndarray:
    grades = {query.query_id: query.grades for query in dev}
    return ndcg_at_10(grades, list(grades), doc_ids, scores)


def mean_auc(dev: list[DevQuery], scored: Scores) -> dict[str, Any]:
    """Mean of `auc` over the queries that have both sides, None without any, and how many were compared with what."""
    values: list[float] = []
    against = {"against_judged": 0, "against_unjudged": 0}
    for query, scores in zip(dev, scored, strict=True):
        relevant = [scores[doc_id] for doc_id in query.relevant if doc_id in scores]
        judged = [scores[doc_id] for doc_id in query.candidates if query.grades.get(doc_id, 1) <= 0]
        negatives = judged or [scores[doc_id] for doc_id in query.candidates if doc_id not in query.grades]
        if relevant and negatives:
            values.append(auc(np.array(relevant), np.array(negatives)))
            against["against_judged" if judged else "against_unjudged"] += 1
    return {"mean": float(np.mean(values)) if values else None, **against}


def auc(relevant: np.ndarray, negatives: np.ndarray) -> float:
    """Share of the pairs of a relevant and another document in which the relevant one scores more; equal ones are half.

    The area under the ROC curve, from the Mann-Whitney U of ranks (Hanley and McNeil, 1982).
    """
    ranks = rankdata(np.concatenate([relevant, negatives]))[: len(relevant)]
    u = ranks.sum() - len(relevant) * (len(relevant) + 1) / 2
    return float(u / (len(relevant) * len(negatives)))
