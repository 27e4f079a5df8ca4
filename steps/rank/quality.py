"""Is the ranker better than the searcher whose candidates it ranks? Measured on judged dev queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sentence_transformers import CrossEncoder, SentenceTransformer

from steps.core.judged import read_judged_sets
from steps.core.measures import is_better, ndcg_at_10, p_of_gain
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower
from steps.rank.params import DEPTH, CrossEncoderParams
from steps.rank.relevance import (
    doc_ids_by_query,
    document_texts,
    draw_ids,
    queries_with_candidates,
    read_candidates,
    searchers,
    union,
)
from steps.retrieval.lexical import corpus_bm25
from steps.retrieval.rankers import pair_scores

BASELINE = "bm25"


Scores = list[dict[str, float]]
"""By document, of each query."""


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

    @property
    def scored(self) -> list[str]:
        """Documents that are scored: candidates and relevant ones."""
        return sorted({*self.candidates, *self.relevant})


def bm25_scores(ingest: Path, dev: Sequence[DevQuery]) -> Scores:
    """BM25 over the whole data set; 0 without a shared term."""
    scores: Scores = [{} for _ in dev]
    scored = {doc_id for query in dev for doc_id in query.scored}
    for dataset in sorted({query.dataset for query in dev}):
        engine = corpus_bm25(ingest, dataset)
        rows = {doc_id: row for row, doc_id in enumerate(engine.doc_ids) if doc_id in scored}
        for number, query in enumerate(dev):
            if query.dataset == dataset:
                values = engine.scores(query.text, np.array([rows[doc_id] for doc_id in query.scored], dtype=np.int64))
                scores[number] = dict(zip(query.scored, values.tolist(), strict=True))
    return scores


def base_scores(dev: Sequence[DevQuery], texts: Mapping[str, str], params: CrossEncoderParams) -> Scores:
    """`tower_scores` of the base, which reads `max_length` tokens of a document as the ranker does of a pair."""
    tower = load_tower(resolve_base(params.base))
    tower.max_seq_length = min(tower.max_seq_length or params.max_length, params.max_length)
    return tower_scores(tower, dev, texts, params)


def tower_scores(
    tower: SentenceTransformer, dev: Sequence[DevQuery], texts: Mapping[str, str], params: CrossEncoderParams
) -> Scores:
    """Similarity of a tower's embeddings; `texts` are those of the documents, by id."""
    rows = {doc_id: row for row, doc_id in enumerate(sorted(texts))}
    embed = partial(encode, tower, precision=params.precision, batch_size=params.batch_size)
    documents = embed([texts[doc_id] for doc_id in rows], "document", caption="base on dev")
    queries = embed([query.text for query in dev], "query")
    scores: Scores = []
    for vector, query in zip(queries, dev, strict=True):
        vectors = documents[[rows[doc_id] for doc_id in query.scored]]
        similarities = tower.similarity(vector[None], vectors)[0].tolist()
        scores.append(dict(zip(query.scored, similarities, strict=True)))
    return scores


def measure(
    ranker: CrossEncoder, ingest: Path, candidates: Path, params: CrossEncoderParams, *, base_embeds: bool
) -> dict[str, Any] | None:
    """How well the ranker ranks the candidates of judged dev queries; None when none has candidates.

    `ndcg_candidates` is nDCG@10 of the order of one searcher, BM25 if it is there, else the first; `ndcg_reranked` that
    of all searchers' candidates as the ranker orders them; `p_value` is of the one-sided paired t-test of a gain.
    `auc`: see `mean_auc`; beside the ranker's `mean` stand, over the same pairs, `bm25` and, if `base_embeds`, as a
    base that is an encoder does, the similarity of its embeddings, `base`; else None.
    """
    searcher = BASELINE if BASELINE in searchers(candidates) else searchers(candidates)[0]
    dev = dev_queries(ingest, candidates, searcher, params)
    if not dev:
        return None
    texts = scored_texts(dev, ingest)
    text_pairs = [(query.text, texts[doc_id]) for query in dev for doc_id in query.scored]
    scores = pair_scores(
        ranker, text_pairs, precision=params.precision, batch_size=params.batch_size, caption="ranker on dev"
    )
    bounds = np.cumsum([len(query.scored) for query in dev])[:-1]
    scored = [
        dict(zip(query.scored, values.tolist(), strict=True))
        for query, values in zip(dev, np.split(scores, bounds), strict=True)
    ]
    baselines = {
        "bm25": mean_auc(dev, bm25_scores(ingest, dev))["mean"],
        "base": mean_auc(dev, base_scores(dev, texts, params))["mean"] if base_embeds else None,
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
    baseline = doc_ids_by_query(read_candidates(candidates, searcher, ids, DEPTH).sort_by("rank"))
    pools = union(candidates, ids, DEPTH)
    return [
        DevQuery(query_id, *judged[query_id], baseline.get(query_id, []), pools[query_id])
        for query_id in ids
        if query_id in pools
    ]


def scored_texts(dev: list[DevQuery], ingest: Path) -> dict[str, str]:
    """Texts by id of all documents that are scored; UserError if the corpus lacks one."""
    return document_texts(ingest, {doc_id for query in dev for doc_id in query.scored})


def reranked_ndcg(dev: list[DevQuery], scored: Scores) -> np.ndarray:
    """nDCG@10 of each query, its candidates in the order of their scores, `(queries,)`."""
    pools = [query.candidates for query in dev]
    values = [np.array([by_id[doc_id] for doc_id in ids]) for ids, by_id in zip(pools, scored, strict=True)]
    return _ndcg(dev, pools, values)


def _ndcg(dev: list[DevQuery], doc_ids: list[list[str]], scores: list[np.ndarray]) -> np.ndarray:
    grades = {query.query_id: query.grades for query in dev}
    return ndcg_at_10(grades, list(grades), doc_ids, scores)


def mean_auc(dev: list[DevQuery], scored: Scores) -> dict[str, Any]:
    """Mean of `auc` over the queries that have both sides, None without any, and how many were compared with what.

    Relevant documents are held against candidates judged not relevant (`against_judged` queries), or, if none is,
    against those that are not judged (`against_unjudged`).
    """
    values: list[float] = []
    against = {"against_judged": 0, "against_unjudged": 0}
    for query, scores in zip(dev, scored, strict=True):
        relevant = [scores[doc_id] for doc_id in query.relevant]
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
